//! A source tree for builds: Lua, with a makefile, and a script to run.

use crate::peer;
use std::fs;
use std::path::{Path, PathBuf};

/// Output of the built program when it runs `script.lua`.
pub const PRINTED: &str = "Lua 5.4\t200010000\n";

/// Creates a directory with the tree. `make` in it builds `minimal`.
pub fn copy(to: &Path) {
    let from = sources();
    peer("cp", &[Path::new("-r"), &from, to]);
    let files = [
        ("Makefile", MAKEFILE),
        ("main.c", MAIN),
        ("script.lua", SCRIPT),
    ];
    for (name, text) in files {
        fs::write(to.join(name), text).expect("a folder of ours");
    }
}

/// Returns the C sources of the library from a crate.
fn sources() -> PathBuf {
    let metadata = peer(
        env!("CARGO"),
        &[
            "metadata",
            "--format-version=1",
            "--offline",
            // Crates for other platforms are not installed.
            "--filter-platform",
            &format!("{}-unknown-linux-gnu", std::env::consts::ARCH),
            "--manifest-path",
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        ],
    );
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let found = packages.iter().find(|p| p["name"] == "lua-src").unwrap();
    let manifest = Path::new(found["manifest_path"].as_str().unwrap());
    let mut sources: Vec<_> = fs::read_dir(manifest.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().unwrap().contains("/lua-5.4"))
        .collect();
    sources.pop().expect("Lua 5.4 in the crate")
}

/// A makefile for a small program, with an archive and separate objects.
const MAKEFILE: &str = "\
CFLAGS = -O0 -DLUA_USE_POSIX -MMD
OBJECTS = $(patsubst %.c,%.o,$(wildcard *.c))
minimal: $(OBJECTS)
\t$(AR) rcs liblua.a $(filter-out main.o,$(OBJECTS))
\t$(CC) -o $@ main.o liblua.a -lm
-include $(OBJECTS:.o=.d)
";

/// The crate has only the library; this is an interpreter.
const MAIN: &str = r#"
#include <stdio.h>
#include "lauxlib.h"
#include "lualib.h"
int main(int count, char **words) {
    lua_State *lua = luaL_newstate();
    luaL_openlibs(lua);
    if (count < 2 || luaL_dofile(lua, words[1])) {
        fprintf(stderr, "%s\n", lua_tostring(lua, -1));
        return 1;
    }
    lua_close(lua);
    return 0;
}
"#;

/// Writes a file, reads it, and prints the result.
const SCRIPT: &str = r#"
local out = assert(io.open("numbers", "w"))
for i = 1, 20000 do out:write(i, "\n") end
out:close()
local sum = 0
for line in io.lines("numbers") do sum = sum + tonumber(line) end
assert(os.rename("numbers", "kept"))
print(_VERSION, sum)
"#;
