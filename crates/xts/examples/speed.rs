//! quick
use std::time::Duration;
use xts::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let only: Option<Kernel> = a.get(1).and_then(|s| s.parse().ok());
    for kernel in Kernel::available() {
        if only.is_some_and(|o| o != kernel) {
            continue;
        }
        for bits in [128, 256] {
            for sector in [SectorSize::B512, SectorSize::B4096] {
                for req in [4096, 65536, 1 << 20] {
                    let d = Duration::from_millis(150);
                    let e = measure_direction(Direction::Encrypt, kernel, bits, sector, req, d);
                    let f = measure_direction(Direction::Decrypt, kernel, bits, sector, req, d);
                    println!(
                        "{kernel:9} {bits} {:4} {req:7} {:.2} {:.2}",
                        sector.bytes(),
                        e / 1e9,
                        f / 1e9
                    );
                }
            }
        }
    }
}
