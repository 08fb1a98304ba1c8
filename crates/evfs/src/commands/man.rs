//! `evfs man`: the manual pages.

use cli::man::{Page, pages};
use cli::{Context, output};
use serde_json::json;
use stack::{Error, Result, exit};
use std::fs;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evfs man | man -l -                       show evfs(1)
  evfs man evfs-attach | man -l -
  evfs man --dir /usr/local/share/man       install all pages")]
pub struct Args {
    /// Page to print, such as evfs-attach, evfs.toml or evfs.7 [default: evfs.1]
    #[arg(conflicts_with = "dir")]
    page: Option<String>,
    /// Write all pages to man1, man5 and man7 in this directory
    #[arg(long)]
    dir: Option<PathBuf>,
}

pub fn run(context: &Context, args: &Args) -> Result<u8> {
    let pages = pages(crate::command());
    match &args.dir {
        Some(dir) => write(context, &pages, dir)?,
        None => print(context, &pages, args.page.as_deref().unwrap_or("evfs.1"))?,
    }
    Ok(exit::OK)
}

fn print(context: &Context, pages: &[Page], name: &str) -> Result<()> {
    let is_it = |page: &&Page| page.file() == name || page.name == name;
    let page = pages.iter().find(is_it).ok_or_else(|| {
        Error::NotFound(format!(
            "there is no manual page `{name}`; `evfs man --dir DIR` writes all pages"
        ))
    })?;
    let value = json!({ "page": page.file(), "text": page.text });
    output::show(context.json, &value, || page.text.clone());
    Ok(())
}

fn write(context: &Context, pages: &[Page], dir: &Path) -> Result<()> {
    let mut written = Vec::new();
    for page in pages {
        let dir = dir.join(format!("man{}", page.section));
        let made = fs::create_dir_all(&dir);
        made.map_err(|e| Error::io("cannot create the directory", &dir, e))?;
        let file = dir.join(page.file());
        fs::write(&file, &page.text).map_err(|e| Error::io("cannot write", &file, e))?;
        written.push(file.display().to_string());
    }
    output::done(context.json, &json!({ "written": written }), || {
        format!("wrote {} pages to {}", written.len(), dir.display())
    });
    Ok(())
}
