//! Prints the comparison of eviction policies under scans as a Markdown table.
//!
//! `cargo run --release -p evfs-cache --example policy_table`

#[path = "../tests/traces/mod.rs"]
mod traces;

use traces::{Hot, Rival, row};

const FRAMES: usize = 65_536;
const HOT_PAGES: usize = 200_000;

fn main() {
    println!(
        "| policy | hot alone | + one-pass scan | + scan, 4 refs/page | loop 1.25x, cold | loop 1.25x, warm | \
         temp file: temp / hot | write 15x: hot / after | random cold, 4 refs |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let hot = Hot::new(HOT_PAGES);
    for rival in Rival::ALL {
        let r = row(rival, FRAMES, &hot);
        println!(
            "| {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} / {:.1} | {:.1} / {:.1} | {:.1} |",
            rival.name(),
            r.hot_alone,
            r.scan,
            r.scan_4_refs,
            r.loop_cold,
            r.loop_warm,
            r.temp,
            r.temp_hot,
            r.flood,
            r.after_flood,
            r.random_cold
        );
    }
}
