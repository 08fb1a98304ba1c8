//! The declarations of `src/api.rs` against the headers of the libraries.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use test_support::{installed, needs_file};

/// The declarations under test.
const API: &str = include_str!("../src/api.rs");

/// Constants and layouts that `src/api.rs` repeats.
const CONSTANTS: &str = "
_Static_assert(EVENT_TYPE_EVENTFD == 2, \"\");
_Static_assert(RBD_LOCK_MODE_EXCLUSIVE == 0, \"\");
_Static_assert(RBD_FEATURE_EXCLUSIVE_LOCK == 1 << 2, \"\");
_Static_assert(RBD_WRITE_ZEROES_FLAG_THICK_PROVISION == 1, \"\");
_Static_assert(sizeof(rbd_image_watcher_t) == 24, \"\");
_Static_assert(__builtin_offsetof(rbd_image_watcher_t, id) == 8, \"\");
_Static_assert(__builtin_offsetof(rbd_image_watcher_t, cookie) == 16, \"\");
";

/// Translates a type to C.
fn c_type(rust: &str) -> &str {
    match rust {
        "Raw" | "*mut c_void" => "void *",
        "*mut Raw" => "void **",
        "*const c_char" => "const char *",
        "*mut c_char" => "char *",
        "*mut *mut c_char" => "char **",
        "*mut *const c_char" => "const char **",
        "*const iovec" => "const struct iovec *",
        "*mut u64" => "uint64_t *",
        "*mut size_t" => "size_t *",
        "*mut LockMode" => "rbd_lock_mode_t *",
        "*mut Watcher" => "rbd_image_watcher_t *",
        "LockMode" => "rbd_lock_mode_t",
        "c_int" => "int",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "i64" => "int64_t",
        "size_t" | "ssize_t" => rust,
        "OnUpdate" => "rbd_update_callback_t",
        "Option<OnComplete>" => "rbd_callback_t",
        other => panic!("no C type for {other}"),
    }
}

/// Translates all declarations to C.
fn declarations() -> (String, usize) {
    let table = API.split("functions! {\n").nth(1).expect("the table");
    let table = table.split("\n}\n").next().expect("its end");
    let table = table.split_whitespace().collect::<Vec<_>>().join(" ");
    let (mut out, mut count) = (String::new(), 0);
    for declaration in table.split("fn ").skip(1) {
        let declaration = declaration.split(';').next().expect("a declaration");
        let (name, rest) = declaration.split_once('(').expect("its arguments");
        let (arguments, result) = rest.rsplit_once(')').expect("their end");
        let result = result.trim().strip_prefix("-> ").map_or("void", c_type);
        let arguments: Vec<&str> = arguments.split(',').map(|a| c_type(a.trim())).collect();
        let _ = writeln!(out, "extern {result} {name}({});", arguments.join(", "));
        count += 1;
    }
    (out, count)
}

mod needs_peer {
    use super::*;

    #[test]
    fn declarations_agree_with_the_headers() {
        for header in ["/usr/include/rados/librados.h", "/usr/include/rbd/librbd.h"] {
            needs_file(Path::new(header));
        }
        let (declarations, count) = declarations();
        assert!(count > 40, "{count} declarations: {declarations}");
        let compiles = |declarations: &str| {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("declarations.c");
            let headers = "#include <rados/librados.h>\n#include <rbd/librbd.h>\n";
            std::fs::write(&file, format!("{headers}{declarations}{CONSTANTS}")).unwrap();
            let mut cc = Command::new(installed("cc"));
            let compiled = cc.args(["-fsyntax-only", "-w"]).arg(file).output().unwrap();
            let text = String::from_utf8_lossy(&compiled.stderr).into_owned();
            (compiled.status.success(), text)
        };
        let (agrees, text) = compiles(&declarations);
        assert!(agrees, "{text}");
        // The comparison finds a difference.
        let wrong = declarations.replace("rbd_close(void *)", "rbd_close(int)");
        assert!(!compiles(&wrong).0 && wrong != declarations);
    }
}
