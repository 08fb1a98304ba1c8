//! Tests of the structure of the screen, at several sizes.

use super::*;
use crate::commands::top::format::Symbols;
use crate::commands::top::keys::Key;
use crate::commands::top::model::Look;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use stack::watch::{
    CacheSample, CellSample, ClientSample, FileSample, IoRates, PathSample, Sample, ServiceSample,
    TransferRates,
};
use std::collections::BTreeMap;
use std::time::Duration;

fn rates(requests: f64) -> IoRates {
    IoRates {
        requests_per_second: requests,
        bytes_per_second: requests * 4096.0,
        errors_per_second: 0.0,
        mean_ns: Some(60_000),
        p50_ns: Some(50_000),
        p99_ns: Some(1_200_000),
    }
}

fn service(name: &str, requests: f64) -> ServiceSample {
    let ops = [
        ("read", requests),
        ("write", requests / 2.0),
        ("flush", 0.0),
    ];
    let io = ops.map(|(op, requests)| (op.to_owned(), rates(requests)));
    ServiceSample {
        name: name.into(),
        kind: "mount",
        state: "ok".into(),
        device: "/srv/images/with/a/long/name/disk.img".into(),
        exports: vec!["/mnt/data".into()],
        pid: Some(7),
        uptime_seconds: Some(3700),
        size_bytes: Some(1 << 30),
        available_bytes: Some(1 << 29),
        filesystem_bytes: Some(1 << 30),
        dirty_bytes: Some(8192),
        oldest_dirty_ms: Some(450),
        epoch: Some(7),
        lease_ms: Some(1900),
        interval_seconds: Some(1.0),
        total: Some(rates(requests * 1.5)),
        io: BTreeMap::from(io),
        ..ServiceSample::default()
    }
}

fn sample(requests: f64) -> Sample {
    let silent = ServiceSample {
        name: "silent".into(),
        kind: "-",
        state: "not answering".into(),
        error: Some("no answer for 2.0 s".into()),
        ..ServiceSample::default()
    };
    Sample {
        services: vec![service("alpha", requests), service("beta", 3.0), silent],
        paths: vec![PathSample {
            service: "alpha".into(),
            lun: "disk1".into(),
            path: "nbd://server/export".into(),
            state: "active".into(),
            rates: Some(TransferRates {
                reads_per_second: requests,
                read_bytes_per_second: requests * 512.0,
                ..TransferRates::default()
            }),
            ..PathSample::default()
        }],
        caches: vec![CacheSample {
            pid: 4711,
            services: vec!["alpha".into(), "beta".into()],
            used_bytes: 64 << 20,
            max_bytes: 1 << 30,
            hit_ratio: Some(0.975),
            reads_per_second: Some(requests),
            writes_per_second: Some(5.0),
            ..CacheSample::default()
        }],
        files: vec![FileSample {
            service: "alpha".into(),
            tree: "main".into(),
            file: 12,
            path: Some("dir/\u{1b}[31mred".into()),
            size_bytes: 1 << 20,
            cached_bytes: Some(4096),
            reads_per_second: Some(requests),
            writes_per_second: Some(0.0),
            ..FileSample::default()
        }],
        cells: vec![CellSample {
            service: "cell".into(),
            cell: "example.org".into(),
            calls_per_second: Some(12.0),
            procedures: vec![("FetchData64".into(), 8.0)],
            ..CellSample::default()
        }],
        clients: vec![ClientSample {
            service: "cell".into(),
            address: "10.0.0.1:7001".into(),
            state: "up".into(),
            promises: 31,
            heard_seconds_ago: 2,
        }],
        ..Sample::default()
    }
}

fn model() -> Model {
    let look = Look {
        colors: true,
        symbols: Symbols::ASCII,
    };
    let mut model = Model::new(Duration::from_secs(1), look);
    for requests in [10.0, 500.0, 1000.0] {
        model.take(sample(requests));
    }
    model
}

/// Draws the model on a screen of this size, and returns its lines.
fn drawn(model: &Model, width: u16, height: u16) -> Vec<String> {
    let buffer = buffer(model, width, height);
    let line = |y| {
        let cells = (0..width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    (0..height).map(line).collect()
}

fn buffer(model: &Model, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let draw = terminal.draw(|frame| render(model, frame.area(), frame.buffer_mut()));
    draw.unwrap();
    terminal.backend().buffer().clone()
}

#[test]
fn services_are_shown_at_80_by_24() {
    let lines = drawn(&model(), 80, 24);
    assert!(lines[0].starts_with("evfs top  3 services, 1 not answering"));
    assert!(lines[0].ends_with("every 1 s"), "{}", lines[0]);
    assert!(
        lines[1].starts_with("[1 Services] 2 Paths "),
        "{}",
        lines[1]
    );
    assert!(lines[1].ends_with("by NAME ^"), "{}", lines[1]);
    for title in ["NAME^", "STATE", "READ/s", "WRITE/s", "OPS/s", "P50", "P99"] {
        assert!(lines[2].contains(title), "{title}: {}", lines[2]);
    }
    assert!(!lines[2].contains("DEVICE"), "{}", lines[2]);
    assert!(lines[3].starts_with("alpha"), "{}", lines[3]);
    for text in [" ok ", "3.9 MiB", "2.0 MiB", "1500", "50.0 us", "1.2 ms"] {
        assert!(lines[3].contains(text), "{text}: {}", lines[3]);
    }
    assert!(lines[5].starts_with("silent"), "{}", lines[5]);
    assert!(lines[5].contains("not answering"), "{}", lines[5]);
    let detail = lines.iter().position(|line| line.starts_with("---"));
    let detail = &lines[detail.unwrap()..];
    let has = |begin: &str| detail.iter().find(|line| line.starts_with(begin));
    assert!(has("alpha: mount on /srv").is_some(), "{detail:?}");
    let read = has("read ").unwrap();
    assert!(read.contains("3.9 MiB/s"), "{read}");
    let unit = "unit    of a cluster, epoch 7, lease for 1.9 s";
    assert!(has(unit).is_some(), "{detail:?}");
    // Three samples make a curve of three characters, and the last one is the largest.
    assert!(read.contains(".+@ "), "{read}");
    assert!(
        has("p99 ").is_some() && has("write ").is_some(),
        "{detail:?}"
    );
    // Kinds of requests without any are left out.
    assert!(!detail.iter().any(|line| line.starts_with("flush")));
    assert!(lines[23].starts_with("q quit"), "{}", lines[23]);
}

#[test]
fn a_narrow_screen_keeps_the_essential_columns() {
    let lines = drawn(&model(), 60, 20);
    for title in ["NAME^", "STATE", "READ/s", "WRITE/s"] {
        assert!(lines[2].contains(title), "{title}: {}", lines[2]);
    }
    assert!(!lines[2].contains("KIND"), "{}", lines[2]);
    assert!(lines[3].starts_with("alpha"), "{}", lines[3]);
    assert!(lines[3].contains("2.0 MiB"), "{}", lines[3]);
    assert!(lines.iter().all(|line| line.chars().count() <= 60));
    assert!(lines[19].starts_with("q quit"), "{}", lines[19]);
}

#[test]
fn a_wide_screen_shows_more_columns() {
    let lines = drawn(&model(), 120, 40);
    for title in ["KIND", "ERR/s", "DIRTY", "USED"] {
        assert!(lines[2].contains(title), "{title}: {}", lines[2]);
    }
    assert!(lines[3].contains("50.0 %"), "{}", lines[3]);
    assert!(lines[39].starts_with("q quit"), "{}", lines[39]);
}

#[test]
fn every_view_shows_its_rows_and_details() {
    let mut model = model();
    for (key, row, detail) in [
        (
            '2',
            "server/export",
            "disk1 over nbd://server/export: active",
        ),
        ('3', "97.5 %", "process 4711: 64.0 MiB of 1.0 GiB used"),
        ('4', "[31mred", "main/dir/\\u{1b}[31mred of alpha"),
        ('5', "10.0.0.1:7001", "FetchData64"),
    ] {
        model.handle(Key::Char(key), 9);
        for (width, height) in [(80, 24), (60, 20), (120, 40)] {
            let lines = drawn(&model, width, height);
            assert!(lines[3].contains(row), "{key} {width}: {}", lines[3]);
            let text = lines[4..].join("\n");
            assert!(text.contains(detail), "{key} {width}: {text}");
        }
    }
}

#[test]
fn an_empty_view_says_why() {
    let mut model = model();
    model.take(Sample::default());
    for key in '1'..='5' {
        model.handle(Key::Char(key), 9);
        let lines = drawn(&model, 80, 24);
        assert_eq!(lines[3], model.view.nothing());
    }
    let new = Model::new(Duration::from_millis(500), model.look);
    let lines = drawn(&new, 80, 24);
    assert!(lines[0].starts_with("evfs top  measuring"), "{}", lines[0]);
    assert!(lines[0].ends_with("every 0.5 s"), "{}", lines[0]);
}

#[test]
fn the_selected_row_is_visible_and_marked() {
    let mut model = model();
    let names: Vec<String> = (10..70).map(|n| format!("s{n}")).collect();
    let many = names.iter().map(|name| service(name, 1.0));
    model.take(Sample {
        services: many.collect(),
        ..Sample::default()
    });
    let page = page(&model, Rect::new(0, 0, 80, 24));
    assert!((10..=15).contains(&page), "{page}");
    for _ in 0..30 {
        model.handle(Key::Down, page);
    }
    let buffer = buffer(&model, 80, 24);
    let lines = drawn(&model, 80, 24);
    let at = lines
        .iter()
        .position(|line| line.starts_with("s40"))
        .unwrap();
    let at = u16::try_from(at).unwrap();
    let is_marked = |y: u16| buffer[(79, y)].modifier.contains(Modifier::REVERSED);
    assert!(is_marked(at) && !is_marked(at - 1) && !is_marked(at + 1));
}

#[test]
fn the_terminal_keeps_its_background_and_colors_can_be_left_out() {
    let mut model = model();
    let foreground = |model: &Model| {
        let buffer = buffer(model, 80, 24);
        assert!(buffer.content().iter().all(|cell| cell.bg == Color::Reset));
        let colored = buffer.content().iter().filter(|c| c.fg != Color::Reset);
        colored.count()
    };
    assert!(foreground(&model) > 0);
    model.look.colors = false;
    assert_eq!(foreground(&model), 0);
}

#[test]
fn help_and_pause_are_shown() {
    let mut model = model();
    model.handle(Key::Char('?'), 9);
    for (width, height) in [(80, 24), (60, 20)] {
        let lines = drawn(&model, width, height);
        let text = lines.join("\n");
        assert!(text.contains("q, Ctrl-C"), "{text}");
    }
    model.handle(Key::Escape, 9);
    model.handle(Key::Char('p'), 9);
    assert!(drawn(&model, 80, 24)[0].ends_with("PAUSED"));
}

#[test]
fn a_screen_of_any_size_can_be_drawn() {
    let mut model = model();
    for key in ['1', '2', '3', '4', '5', '?'] {
        model.handle(Key::Char(key), 9);
        for width in [0, 1, 2, 7, 19, 40, 300] {
            for height in [0, 1, 2, 3, 4, 5, 13, 14, 15, 100] {
                drawn(&model, width, height);
                page(&model, Rect::new(0, 0, width, height));
            }
        }
    }
    // The area may be a part of the screen.
    let mut buffer = Buffer::empty(Rect::new(5, 5, 20, 10));
    render(&model, Rect::new(0, 0, 80, 24), &mut buffer);
}
