//! Checks that every workload has a documentation page with every parameter that can be set.

use bench_load::{CATALOGUE, Extent, Job};
use std::path::Path;

#[test]
fn every_workload_has_a_page_with_its_parameters() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = root.join("../../docs/workloads");
    let list = std::fs::read_to_string(pages.join("README.md")).unwrap();
    for entry in CATALOGUE {
        let name = entry.name;
        assert!(list.contains(&format!("({name}.md)")), "{name}");
        let page = std::fs::read_to_string(pages.join(format!("{name}.md"))).unwrap();
        // The first column of the table may contain several names.
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let named: Vec<&str> = rows
            .filter_map(|row| row.split('`').next())
            .flat_map(|names| names.split(", "))
            .collect();
        let parameters = Job::named(name, Extent::Standard).unwrap().parameters();
        for (parameter, _) in &parameters {
            assert!(named.contains(&parameter.as_str()), "{name}: {parameter}");
        }
        let known: Vec<&str> = parameters.iter().map(|(name, _)| name.as_str()).collect();
        for parameter in named {
            assert!(known.contains(&parameter), "{name} has no {parameter}");
        }
    }
}
