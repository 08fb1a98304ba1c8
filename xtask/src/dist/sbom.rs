//! The bill of materials, in the format CycloneDX 1.5: crates with their versions, checksums and
//! licenses, and which of them depends on which.

use super::materials::{Material, Materials};
use serde_json::{Value, json};

/// Returns the bill of materials as JSON.
pub fn document(materials: &Materials, timestamp: &str, compiler: &str) -> String {
    let others = materials
        .all
        .iter()
        .filter(|(id, _)| **id != materials.program);
    let mut components: Vec<Value> = others.map(|(id, m)| component(id, m, "library")).collect();
    let library = format!("rust-std@{compiler}");
    components.push(json!({
        "type": "library",
        "bom-ref": library,
        "name": "rust-std",
        "version": compiler,
        "scope": "required",
        "licenses": [{ "expression": "MIT OR Apache-2.0" }],
        "purl": format!("pkg:generic/rust@{compiler}"),
    }));
    let uses = |(id, material): (&String, &Material)| {
        let mut uses: Vec<&str> = material.uses.iter().map(String::as_str).collect();
        if *id == materials.program {
            uses.push(&library);
        }
        json!({ "ref": id, "dependsOn": uses })
    };
    let mut dependencies: Vec<Value> = materials.all.iter().map(uses).collect();
    dependencies.push(json!({ "ref": library, "dependsOn": [] }));
    let program = materials.all.get(&materials.program);
    let program = program.map(|m| component(&materials.program, m, "application"));
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": timestamp,
            "tools": { "components": [
                { "type": "application", "name": "cargo xtask dist", "version": materials.version() },
                { "type": "application", "name": "rustc", "version": compiler },
            ] },
            "component": program,
        },
        "components": components,
        "dependencies": dependencies,
    });
    format!("{bill:#}\n")
}

/// Describes a crate. Scope `excluded` means that its code is not in the program.
fn component(id: &str, material: &Material, kind: &str) -> Value {
    let scope = if material.is_linked {
        "required"
    } else {
        "excluded"
    };
    let mut component = json!({
        "type": kind,
        "bom-ref": id,
        "name": material.name,
        "version": material.version,
        "scope": scope,
    });
    if let Some(checksum) = &material.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(license) = &material.license {
        component["licenses"] = json!([{ "expression": license }]);
    }
    // Crates of the workspace are in no registry.
    if material.checksum.is_some() {
        let (name, version) = (&material.name, &material.version);
        let purl = format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"));
        component["purl"] = json!(purl);
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::PathBuf;

    fn material(name: &str, uses: &[&str], checksum: Option<&str>) -> (String, Material) {
        let material = Material {
            name: name.into(),
            version: "1.0.0+x".into(),
            license: Some("MIT".into()),
            checksum: checksum.map(str::to_owned),
            directory: PathBuf::from("/secret/place"),
            is_linked: name != "macro",
            uses: uses
                .iter()
                .map(|id| (*id).to_owned())
                .collect::<BTreeSet<_>>(),
        };
        (format!("{name}@1.0.0+x"), material)
    }

    #[test]
    fn a_bill_has_the_fields_of_its_format_and_no_path() {
        let materials = Materials {
            program: "evfs@1.0.0+x".into(),
            all: BTreeMap::from([
                material("evfs", &["a@1.0.0+x", "macro@1.0.0+x"], None),
                material("a", &[], Some("12")),
                material("macro", &[], Some("34")),
            ]),
        };
        let text = document(&materials, "2026-01-01T00:00:00Z", "1.95.0");
        assert!(!text.contains("/secret"), "{text}");
        let bill: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(bill["bomFormat"], "CycloneDX");
        assert_eq!(bill["metadata"]["component"]["bom-ref"], "evfs@1.0.0+x");
        let components = bill["components"].as_array().unwrap();
        let of = |name: &str| components.iter().find(|c| c["name"] == name).unwrap();
        assert_eq!(of("a")["purl"], "pkg:cargo/a@1.0.0%2Bx");
        assert_eq!(of("a")["hashes"][0]["content"], "12");
        assert_eq!(
            (&of("a")["scope"], &of("macro")["scope"]),
            (&json!("required"), &json!("excluded"))
        );
        let uses = &bill["dependencies"].as_array().unwrap()[1];
        assert_eq!(uses["ref"], "evfs@1.0.0+x");
        assert_eq!(uses["dependsOn"].as_array().unwrap().len(), 3);
    }
}
