//! The operations of Connectathon's basic tests, with their default counts, which are also those of
//! the IFS report of 1990. Each one is verified.
//!
//! ```text
//!   connectathon FOLDER TEST...
//! ```
//!
//! A TEST is a number from 1 to 9. Test 2 requires test 1; the others are independent.

use rustix::fs::statfs;
use std::env;
use std::error::Error;
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Instant;

type Outcome = Result<String, Box<dyn Error>>;

/// Fails unless two values are equal.
macro_rules! same {
    ($found:expr, $wanted:expr) => {{
        let (found, wanted) = ($found, $wanted);
        if found != wanted {
            return Err(format!("{}: {found:?} and not {wanted:?}", stringify!($found)).into());
        }
    }};
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let at = PathBuf::from(args.next().ok_or("which folder?")?);
    for test in args {
        let began = Instant::now();
        let said = run(&test, &at).map_err(|e| format!("test {test}: {e}"))?;
        println!(
            "test {test}: {said} in {:.2} s",
            began.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

fn run(test: &str, at: &Path) -> Outcome {
    match test {
        "1" => create_tree(&at.join("tree")),
        "2" => delete_tree(&at.join("tree")),
        "3" => getcwd(at),
        "4" => chmod(at),
        "5" => data(at),
        "6" => read_directory(&at.join("many")),
        "7" => rename_and_link(at),
        "8" => symlinks(at),
        "9" => room(at),
        _ => Err("there is none".into()),
    }
}

/// Test 1: creates nested directories with empty files.
fn create_tree(at: &Path) -> Outcome {
    let (mut files, mut folders) = (0, 0);
    fs::create_dir(at)?;
    make_tree(at, 5, &mut files, &mut folders)?;
    same!((files, folders), (155, 62));
    Ok(format!("created {files} files {folders} directories"))
}

/// Test 2: removes what test 1 created.
fn delete_tree(at: &Path) -> Outcome {
    let (mut files, mut folders) = (0, 0);
    remove_tree(at, 5, &mut files, &mut folders)?;
    same!(fs::read_dir(at)?.count(), 0);
    fs::remove_dir(at)?;
    same!((files, folders), (155, 62));
    Ok(format!("removed {files} files {folders} directories"))
}

fn make_tree(at: &Path, levels: u32, files: &mut u32, folders: &mut u32) -> std::io::Result<()> {
    for i in 0..5 {
        File::create_new(at.join(format!("file.{i}")))?;
        *files += 1;
    }
    for i in 0..2 {
        let folder = at.join(format!("dir.{i}"));
        fs::create_dir(&folder)?;
        *folders += 1;
        if levels > 1 {
            make_tree(&folder, levels - 1, files, folders)?;
        }
    }
    Ok(())
}

fn remove_tree(at: &Path, levels: u32, files: &mut u32, folders: &mut u32) -> std::io::Result<()> {
    for i in 0..5 {
        fs::remove_file(at.join(format!("file.{i}")))?;
        *files += 1;
    }
    for i in 0..2 {
        let folder = at.join(format!("dir.{i}"));
        if levels > 1 {
            remove_tree(&folder, levels - 1, files, folders)?;
        }
        fs::remove_dir(&folder)?;
        *folders += 1;
    }
    Ok(())
}

/// Test 3: the current directory.
fn getcwd(at: &Path) -> Outcome {
    let before = env::current_dir()?;
    env::set_current_dir(at)?;
    for _ in 0..250 {
        let here = env::current_dir()?;
        same!(&here, at);
        same!(fs::metadata(&here)?.is_dir(), true);
    }
    env::set_current_dir(before)?;
    Ok("500 getcwd and stat calls".into())
}

/// Test 4: modes.
fn chmod(at: &Path) -> Outcome {
    let files: Vec<_> = (0..10).map(|i| at.join(format!("mode.{i}"))).collect();
    for file in &files {
        File::create_new(file)?;
    }
    for _ in 0..50 {
        for file in &files {
            for mode in [0, 0o666] {
                fs::set_permissions(file, Permissions::from_mode(mode))?;
                same!(fs::metadata(file)?.mode() & 0o7777, mode);
            }
        }
    }
    for file in &files {
        fs::remove_file(file)?;
    }
    Ok("1000 chmods and stats on 10 files".into())
}

/// Test 5: a file of 1 MiB, written and read ten times.
fn data(at: &Path) -> Outcome {
    const SIZE: usize = 1 << 20;
    const PIECE: usize = 8192;
    let file = at.join("bigfile");
    let piece: Vec<u8> = (0..PIECE).map(|i| (i / 4) as u8).collect();
    let began = Instant::now();
    for _ in 0..10 {
        let mut out = File::create(&file)?;
        same!(out.metadata()?.len(), 0);
        for _ in 0..SIZE / PIECE {
            out.write_all(&piece)?;
        }
        drop(out);
        same!(fs::metadata(&file)?.len(), SIZE as u64);
    }
    let written = began.elapsed().as_secs_f64();
    let mut found = vec![0; PIECE];
    for _ in 0..10 {
        let mut input = File::open(&file)?;
        for _ in 0..SIZE / PIECE {
            input.read_exact(&mut found)?;
            same!(found == piece, true);
        }
        same!(input.read(&mut found)?, 0);
    }
    fs::remove_file(&file)?;
    Ok(format!(
        "wrote (in {written:.2} s) and read a 1048576 byte file 10 times"
    ))
}

/// Test 6: a directory that is read while it shrinks.
fn read_directory(at: &Path) -> Outcome {
    const FILES: usize = 200;
    fs::create_dir(at)?;
    for i in 0..FILES {
        File::create_new(at.join(format!("file.{i}")))?;
    }
    let mut entries = 0;
    for gone in 0..FILES {
        let mut seen = vec![false; FILES];
        for entry in fs::read_dir(at)? {
            let name = entry?.file_name();
            let name = name.to_str().and_then(|name| name.strip_prefix("file."));
            let number: usize = name.ok_or("a stray name")?.parse()?;
            same!(seen[number], false);
            seen[number] = true;
        }
        let wanted: Vec<bool> = (0..FILES).map(|i| i >= gone).collect();
        same!(seen == wanted, true);
        // `.` and `..` are read as well, but not returned.
        entries += FILES - gone + 2;
        fs::remove_file(at.join(format!("file.{gone}")))?;
    }
    fs::remove_dir(at)?;
    same!(entries, 20_500);
    Ok(format!("{entries} entries read, {FILES} files"))
}

/// Test 7: renames and hard links.
fn rename_and_link(at: &Path) -> Outcome {
    for i in 0..10 {
        let name = at.join(format!("file.{i}"));
        let new = at.join(format!("newfile.{i}"));
        File::create_new(&name)?;
        for _ in 0..10 {
            fs::rename(&name, &new)?;
            same!(fs::metadata(&name).is_err(), true);
            same!(fs::metadata(&new)?.nlink(), 1);
            fs::hard_link(&new, &name)?;
            same!(fs::metadata(&name)?.nlink(), 2);
            same!(fs::metadata(&new)?.nlink(), 2);
            fs::remove_file(&new)?;
            same!(fs::metadata(&name)?.nlink(), 1);
        }
        fs::remove_file(&name)?;
    }
    Ok("200 renames and links on 10 files".into())
}

/// Test 8: symbolic links.
fn symlinks(at: &Path) -> Outcome {
    for _ in 0..20 {
        for i in 0..10 {
            let name = at.join(format!("link.{i}"));
            let target = PathBuf::from(format!("/this/is/a/symlink.{i}"));
            symlink(&target, &name)?;
            same!(fs::symlink_metadata(&name)?.is_symlink(), true);
            same!(fs::read_link(&name)?, target);
            fs::remove_file(&name)?;
        }
    }
    Ok("400 symlinks and readlinks on 10 files".into())
}

/// Test 9: file system statistics.
fn room(at: &Path) -> Outcome {
    for _ in 0..1500 {
        same!(statfs(at)?.f_bsize > 0, true);
    }
    Ok("1500 statfs calls".into())
}
