//! Accesses a page of a mapping, for a test of the signals that end this program.
//!
//! ```text
//!   touch_page error | end | good
//! ```
//!
//! The page cannot be loaded, is beyond the end of the file, or is intact.

#[path = "../tests/common/bench.rs"]
mod bench;
#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/common/touch.rs"]
mod touch;

use bench::Bench;
use block::ErrorKind;
use block_testing::Failure;
use cache::Access;
use rustix::process::{Resource, Rlimit, setrlimit};
use touch::{PAGE, load};

fn main() {
    let page = std::env::args().nth(1).expect("which page?");
    let no_core_dump = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, no_core_dump).expect("a lower limit");
    let bench = Bench::calm(4);
    let (_, open) = bench.open();
    let mapping = open.map(0..8 * PAGE, Access::Read).expect("a mapping");
    match page.as_str() {
        "error" => {
            bench.errors.set(Some(Failure::every(1, ErrorKind::Io)));
            load(&mapping, 1);
        }
        "end" => _ = load(&mapping, 4),
        "good" => assert_eq!(load(&mapping, 1), 1),
        other => panic!("no page `{other}`"),
    }
}
