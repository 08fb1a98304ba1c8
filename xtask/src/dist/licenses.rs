//! The licenses of all crates in the program, as one text. Most of them require that a copy
//! accompanies the program.

use super::materials::{Material, Materials};
use super::{failed, list};
use std::collections::BTreeMap;
use std::path::Path;

/// First words of the names of files with a license or a notice.
const NAMES: [&str; 6] = [
    "COPYING",
    "COPYRIGHT",
    "LICENCE",
    "LICENSE",
    "NOTICE",
    "UNLICENSE",
];

/// Returns the licenses of the crates from elsewhere. Equal texts appear once.
pub fn texts(materials: &Materials) -> Result<String, String> {
    let mut all = String::from(
        "EVFS contains these libraries, which are licensed by their authors under these terms.\n",
    );
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    let from_elsewhere = |material: &&Material| material.is_linked && material.checksum.is_some();
    for material in materials.all.values().filter(from_elsewhere) {
        let title = format!("{} {}", material.name, material.version);
        let license = material.license.as_deref().unwrap_or("see below");
        all += &format!("\n{}\n{title}: {license}\n", "=".repeat(72));
        let files = files(&material.directory)?;
        if files.is_empty() {
            all += "\nIts archive has no file with the text of the license.\n";
        }
        for (name, text) in files {
            let first = known.get(&text);
            if let Some(first) = first {
                all += &format!("\n{name}: the same text as {first}\n");
            } else {
                all += &format!("\n{name}:\n\n{text}\n");
                known.insert(text, format!("{name} of {title}"));
            }
        }
    }
    Ok(all)
}

/// Returns the names and texts of the license files in the directory of a crate.
fn files(dir: &Path) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    for path in list(dir)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let upper = name.to_uppercase();
        if path.is_file() && NAMES.iter().any(|start| upper.starts_with(start)) {
            let bytes = std::fs::read(&path).map_err(|e| failed("cannot read", &path, &e))?;
            let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
            found.push((name.into_owned(), text.trim_end().to_owned()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;

    #[test]
    fn every_text_is_included_once() {
        let dir = tempfile::tempdir().unwrap();
        let material = |name: &str, is_linked: bool| {
            let directory = dir.path().join(name);
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("LICENSE-MIT"), "Permission is granted\r\n").unwrap();
            fs::write(directory.join("licence.md"), format!("of {name}")).unwrap();
            fs::write(directory.join("README.md"), "no license").unwrap();
            let material = Material {
                name: name.into(),
                version: "1.0.0".into(),
                license: Some("MIT".into()),
                checksum: Some("12".into()),
                directory,
                is_linked,
                uses: BTreeSet::new(),
            };
            (name.to_owned(), material)
        };
        let materials = Materials {
            program: "evfs".into(),
            all: BTreeMap::from([
                material("a", true),
                material("b", true),
                material("c", false),
            ]),
        };
        let text = texts(&materials).unwrap();
        assert_eq!(text.matches("Permission is granted").count(), 1, "{text}");
        assert!(
            text.contains("the same text as LICENSE-MIT of a 1.0.0"),
            "{text}"
        );
        assert!(text.contains("of b") && !text.contains("of c"), "{text}");
        assert!(!text.contains("no license"), "{text}");
    }
}
