//! Output of `evfs cell`.

use cli::output::size;
use cli::table::Column::{self, Left, Right};
use serde_json::{Value, json};
use stack::cell::{self, CreatedCell, Record};
use std::fmt::Write as _;
use std::net::Ipv4Addr;

/// Formats a new cell with the configuration of its clients.
pub fn describe_made(made: &CreatedCell, device: &str) -> String {
    let done = match (made.formatted, made.encrypted) {
        (true, true) => "formatted, encrypted",
        (true, false) => "formatted, not encrypted",
        (false, true) => "content kept, encrypted",
        (false, false) => "content kept, not encrypted",
    };
    format!(
        "{device} is the cell {}: {done}\n{}\n\
         Serve it:\n  evfs serve {device} --background\n\n\
         For the file CellServDB of clients:\n{}\n\
         Mount it with Linux (kafs), as root:\n{}\n\
         Mount it with OpenAFS in user space, as root:\n{}",
        made.cell.name,
        describe_volumes(&json!({ "volumes": made.volumes })),
        indented(&made.cellservdb),
        indented(&kafs(&made.cell)),
        indented(&afsd_fuse(&made.cell)),
    )
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// Formats the commands that mount a cell with Linux. The kernel queries the addresses of a cell by
/// `request-key`, even if they were configured, and `kafs-dns` of the package kafs-client answers
/// that from `/etc/kafs`.
pub fn kafs(cell: &Record) -> String {
    let name = &cell.name;
    let servers = cell.listen.iter().enumerate();
    let servers =
        servers.map(|(index, at)| format!("s{index}.{name} = {{\\n address = {at}\\n }}\\n "));
    let servers: String = servers.collect();
    let addresses: Vec<_> = cell.listen.iter().map(Ipv4Addr::to_string).collect();
    format!(
        "apt-get install kafs-client keyutils\n\
         mkdir -p /etc/kafs/client.d /mnt/{name}\n\
         printf '[cells]\\n{name} = {{\\n use_dns = no\\n servers = {{\\n {servers}}}\\n}}\\n' \
         > /etc/kafs/client.d/{name}.conf\n\
         modprobe -a fcrypt pcbc kafs\n\
         echo 'add {name} {}' > /proc/net/afs/cells\n\
         mount -t afs '%{name}:root.cell.' /mnt/{name}\n",
        addresses.join(":"),
    )
}

/// Formats the commands that mount a cell with `afsd.fuse` of OpenAFS, with a configuration of its
/// own.
pub fn afsd_fuse(cell: &Record) -> String {
    let name = &cell.name;
    let at = format!("/tmp/afs-{name}");
    let lines = cell::cell_serv_db(name, &cell.listen).replace('\n', "\\n");
    format!(
        "apt-get install --no-install-recommends openafs-client openafs-fuse\n\
         mkdir -p {at}/etc {at}/cache {at}/afs\n\
         echo {name} > {at}/etc/ThisCell\n\
         echo '{at}/afs:{at}/cache:100000' > {at}/etc/cacheinfo\n\
         printf '{lines}' > {at}/etc/CellServDB\n\
         afsd.fuse -dynroot -fakestat -confdir {at}/etc -mountdir {at}/afs -cachedir {at}/cache \
         -memcache -nosettime\n\
         ls {at}/afs/{name}\n",
    )
}

/// Formats the status of a cell.
pub fn describe(cell: &Value) -> String {
    let text = |key: &str| cell[key].as_str().unwrap_or("-").to_owned();
    let mut out = format!("{}\n", text("cell"));
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:<12}{value}");
    };
    if cell["served"] != true {
        line("served", "no; serve it with `evfs serve`".into());
        line("addresses", list(&cell["listen"]));
        return out + &describe_volumes(cell);
    }
    line(
        "served",
        format!(
            "{} as {}, pid {}, {} threads{}",
            text("device"),
            text("name"),
            cell["pid"],
            cell["threads"],
            if cell["read_only"] == true {
                ", READ-ONLY since a write error"
            } else {
                ""
            }
        ),
    );
    line("addresses", list(&cell["listen"]));
    if cell["announced"] != cell["listen"] {
        line("announced", list(&cell["announced"]));
    }
    let everybody = "every client that can reach the server".to_owned();
    line(
        "allowed",
        Some(list(&cell["allowed"]))
            .filter(|allowed| !allowed.is_empty())
            .unwrap_or(everybody),
    );
    let may = match (cell["read_only"] == true, cell["anonymous_write"] == true) {
        (true, _) => "none",
        (_, true) => "clients that access lists permit, by address",
        (_, false) => "none; --anonymous-write admits clients that access lists permit",
    };
    line("writers", may.into());
    if let Some(warning) = cell["warning"].as_str() {
        line("warning", warning.into());
    }
    out + &counters(&cell["stats"]) + &clients(&cell["clients"]) + &describe_volumes(cell)
}

fn list(values: &Value) -> String {
    let texts = values.as_array().into_iter().flatten();
    texts
        .filter_map(Value::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Formats the counters of the server.
fn counters(stats: &Value) -> String {
    let number = |key: &str| stats[key].as_u64().unwrap_or(0);
    let both = |key: &str| -> u64 {
        let ports = ["files", "location"];
        ports.iter().filter_map(|p| stats[p][key].as_u64()).sum()
    };
    let mut out = format!(
        "  clients     {}, {} of them active within 15 minutes; {} callback promises\n\
        \x20 calls       {}, {} of them failed; {} fetched, {} stored\n\
        \x20 callbacks   {} broken\n\
        \x20 network     {} datagrams in, {} out; {} dropped, {} packets resent, {} jumbograms out, {} in\n",
        number("clients"),
        number("active_clients"),
        number("promises"),
        number("calls"),
        number("errors"),
        size(number("fetched_bytes")),
        size(number("stored_bytes")),
        number("callbacks_broken"),
        both("datagrams_in"),
        both("datagrams_out"),
        both("dropped_datagrams"),
        both("resent_packets"),
        both("jumbograms_out"),
        both("jumbograms_in"),
    );
    let row = |(name, row): (&String, &Value)| {
        [
            format!("    {name}"),
            format!("{} calls", row["calls"].as_u64().unwrap_or(0)),
            format!("{} errors", row["errors"].as_u64().unwrap_or(0)),
        ]
    };
    let procedures = stats["procedures"].as_object().into_iter().flatten();
    let rows: Vec<_> = procedures.map(row).collect();
    out += &cli::table::text(&[Left(24), Right(17), Right(16)], &rows);
    out
}

fn clients(clients: &Value) -> String {
    let row = |client: &Value| {
        let text = |key: &str| client[key].as_str().unwrap_or("-").to_owned();
        [
            format!("  client {}:{}", text("address"), client["port"]),
            text("state"),
            format!("{} promises", client["promises"]),
            format!(" heard {} s ago ", client["heard_seconds_ago"]),
            text("uuid"),
        ]
    };
    let all = clients.as_array().into_iter().flatten();
    let rows: Vec<_> = all.map(row).collect();
    let columns = [Left(30), Left(5), Right(16), Left(0), Left(0)];
    cli::table::text(&columns, &rows)
}

/// Formats a line for each volume of a cell.
pub fn describe_volumes(cell: &Value) -> String {
    let all = cell["volumes"].as_array().into_iter().flatten();
    let rows: Vec<_> = all.map(row).collect();
    cli::table::text(&VOLUME_COLUMNS, &rows)
}

const VOLUME_COLUMNS: [Column; 4] = [Right(13), Left(24), Left(11), Left(0)];

fn row(volume: &Value) -> [String; 4] {
    let number = |key: &str| volume[key].as_u64().unwrap_or(0);
    let text = |key: &str| volume[key].as_str().unwrap_or("-").to_owned();
    let mut used = format!(
        "{} in {} files and directories",
        size(number("used_bytes")),
        number("used_inodes"),
    );
    if let Some(quota) = volume["quota_bytes"].as_u64() {
        let _ = write!(used, "  quota {}", size(quota));
    }
    // A dry run may not know the number.
    let id = volume["id"].as_u64();
    let id = id.map_or_else(|| "- ".to_owned(), |id| format!("{id} "));
    [id, text("name"), text("kind"), used]
}

/// Formats an access list.
pub fn describe_list(value: &Value) -> String {
    let text = |key: &str| value[key].as_str().unwrap_or("-");
    let mut rows = Vec::new();
    for (title, key) in [("may", "positive"), ("may not", "negative")] {
        for entry in value[key].as_array().into_iter().flatten() {
            let word = |key: &str| entry[key].as_str().unwrap_or("-").to_owned();
            let name = format!("  {}", word("name"));
            rows.push([name, title.to_owned(), word("rights")]);
        }
    }
    let head = format!("access list of {} in {}\n", text("path"), text("volume"));
    head + &cli::table::text(&[Left(26), Left(8), Left(0)], &rows)
}

/// Formats a line for a volume.
pub fn describe_volume(volume: &Value) -> String {
    cli::table::text(&VOLUME_COLUMNS, &[row(volume)])
}
