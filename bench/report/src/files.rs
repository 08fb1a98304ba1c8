//! Writes the files of a result directory.

use crate::results::{Results, failed};
use crate::{accounts, html, table};
use bench_core::Result;
use std::fs;
use std::path::Path;

/// Writes all files derived from the journals.
///
/// # Errors
/// [`bench_core::Error::Journal`] if a file cannot be written.
pub fn write(results: &Results, folder: &Path) -> Result<()> {
    let json = serde_json::to_string_pretty(results).expect("plain data has a JSON form");
    put(&folder.join("result.json"), &json)?;
    put(&folder.join("cells.csv"), &table::csv(&results.studies))?;
    put(
        &folder.join("accounts.csv"),
        &accounts::csv(&results.studies),
    )?;
    put(&folder.join("report.txt"), &results.text())?;
    put(&folder.join("report.html"), &html::page(results))?;
    let figures = folder.join("figures");
    fs::create_dir_all(&figures).map_err(|e| failed(&figures, e))?;
    for figure in html::figures(&results.studies) {
        put(&figures.join(format!("{}.svg", figure.name)), &figure.svg)?;
    }
    Ok(())
}

fn put(path: &Path, text: &str) -> Result<()> {
    let beside = path.with_extension("new");
    let put = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    put.map_err(|e| {
        let _ = fs::remove_file(&beside);
        failed(path, e)
    })
}
