//! Prints the NUMA cells of this machine as `multipath` sees them, as JSON; a guest runs it.

use numa::Topology;
use serde_json::{Value, json};
use std::path::Path;

fn main() -> std::io::Result<()> {
    let topology = Topology::read(Path::new("/sys"))?;
    let cells: Vec<Value> = topology
        .nodes()
        .map(|cell| {
            let distances: Vec<_> = topology
                .nodes()
                .map(|other| topology.distance(cell, other))
                .collect();
            json!({"cell": cell, "cpus": topology.cpus(cell), "distances": distances})
        })
        .collect();
    println!(
        "{}",
        json!({"cells": cells, "current": topology.current_node()})
    );
    Ok(())
}
