//! The program as a file: the libraries and the C library that it needs, and its symbols.

use super::{Outcome, output, run_command};
use std::path::Path;
use std::process::Command;

/// Properties of a program that its packages declare.
#[derive(Debug)]
pub struct Program {
    /// Shared libraries that it is linked with.
    pub libraries: Vec<String>,
    /// Oldest version of glibc that has all functions that it uses.
    pub glibc: (u32, u32),
    /// Identity of the build, by which debuggers find the symbols.
    pub build_id: String,
}

impl Program {
    /// Returns the version of glibc as text.
    pub fn glibc(&self) -> String {
        format!("{}.{}", self.glibc.0, self.glibc.1)
    }
}

/// Reads the properties of a program.
pub fn examine(binary: &Path) -> Result<Program, String> {
    let read = |program: &str, option: &str| {
        let mut command = Command::new(program);
        output(command.env("LC_ALL", "C").arg(option).arg(binary))
    };
    let missing = |what: &str| format!("{} has no {what}", binary.display());
    Ok(Program {
        libraries: libraries(&read("objdump", "-p")?),
        glibc: glibc(&read("objdump", "-T")?).ok_or_else(|| missing("symbol of glibc"))?,
        build_id: build_id(&read("readelf", "-n")?).ok_or_else(|| missing("build ID"))?,
    })
}

/// Writes the program without symbols, and its symbols alone: a file that debuggers read as it is.
pub fn split(binary: &Path, stripped: &Path, symbols: &Path) -> Outcome {
    let mut keep = Command::new("objcopy");
    keep.args(["--only-keep-debug", "--compress-debug-sections=none"]);
    run_command(keep.arg(binary).arg(symbols))?;
    let mut strip = Command::new("objcopy");
    strip.args(["--strip-all", "--remove-section=.comment"]);
    run_command(strip.arg(binary).arg(stripped))
}

/// Finds the shared libraries in the output of `objdump -p`.
fn libraries(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::split_whitespace);
    let needed = lines.filter_map(|mut words| {
        let name = (words.next() == Some("NEEDED")).then(|| words.next());
        name.flatten().map(str::to_owned)
    });
    needed.collect()
}

/// Finds the highest version of glibc in the output of `objdump -T`.
fn glibc(text: &str) -> Option<(u32, u32)> {
    let versions = text.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let mut numbers = rest[..end.unwrap_or(rest.len())].split('.');
        let mut number = || numbers.next()?.parse::<u32>().ok();
        Some((number()?, number()?))
    });
    versions.max()
}

/// Finds the build ID in the output of `readelf -n`.
fn build_id(text: &str) -> Option<String> {
    let mut ids = text
        .lines()
        .filter_map(|line| line.split_once("Build ID: "));
    let id = ids.next()?.1.trim();
    let is_id = id.len() > 2 && id.chars().all(|c| c.is_ascii_hexdigit());
    is_id.then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_found_in_the_output_of_the_tools() {
        let headers = "Dynamic Section:\n  NEEDED               libgcc_s.so.1\n  \
                       NEEDED               libc.so.6\n  FLAGS                0x8\n";
        assert_eq!(libraries(headers), ["libgcc_s.so.1", "libc.so.6"]);
        let symbols = "0 DF *UND* 0 (GLIBC_2.9) read\n0 DF *UND* 0 (GLIBC_2.34) main\n\
                       0 DF *UND* 0 (GLIBC_2.2.5) write\n0 DF *UND* 0 (GLIBC_PRIVATE) x\n";
        assert_eq!(glibc(symbols), Some((2, 34)));
        assert_eq!(glibc("0 DF *UND* 0 (GCC_3.0) x\n"), None);
        let notes = "  GNU  0x14  NT_GNU_BUILD_ID\n    Build ID: 7488ef6e\n";
        assert_eq!(build_id(notes).as_deref(), Some("7488ef6e"));
        assert_eq!(build_id("    Build ID: \n"), None);
    }
}
