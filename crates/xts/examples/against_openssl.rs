//! Compares every kernel that this CPU supports with the system's OpenSSL, in one thread.
//!
//! ```text
//! cargo run --release -p evfs-xts --features openssl --example against_openssl [-- [--json] [--rounds N] [--millis N]]
//! ```
//!
//! Both sides run in the same loop and are measured by the thread's CPU time. The contestants take
//! turns in each round, so that other load on the machine affects all of them. The table shows the
//! medians over the rounds, and the median of the ratios within a round. OpenSSL is used in its
//! fastest way for LUKS sectors: one context, the key set once, and for each sector one call for
//! the tweak and one for the data, in place.

use openssl::cipher::Cipher;
use openssl::cipher_ctx::CipherCtx;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::time::Duration;
use xts::{Direction, Kernel, SectorSize, Tweak, Xts};

const REQUESTS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, or: u64| {
        let at = args.iter().position(|arg| arg == name);
        at.map_or(or, |at| {
            let value = args.get(at + 1).and_then(|value| value.parse().ok());
            value.unwrap_or_else(|| panic!("{name} takes a number"))
        })
    };
    let rounds = number("--rounds", 9).max(1) as usize;
    let spell = Duration::from_millis(number("--millis", 20).max(1));
    let mut rows = Vec::new();
    for key_bits in [128, 256] {
        for sector in [SectorSize::B512, SectorSize::B4096] {
            for request in REQUESTS {
                for way in [Direction::Encrypt, Direction::Decrypt] {
                    rows.push(Row::run(
                        Case {
                            key_bits,
                            sector,
                            request,
                            way,
                        },
                        rounds,
                        spell,
                    ));
                }
            }
        }
    }
    if args.iter().any(|arg| arg == "--json") {
        println!("{}", as_json(&rows, rounds, spell));
    } else {
        print_table(&rows);
    }
}

/// Parameters of one line of the table.
#[derive(Clone, Copy)]
struct Case {
    key_bits: u32,
    sector: SectorSize,
    request: usize,
    way: Direction,
}

/// Bytes per CPU-second of a case: for each contestant its name and one sample per round, OpenSSL
/// first.
struct Row {
    case: Case,
    samples: Vec<(String, Vec<f64>)>,
}

impl Row {
    fn run(case: Case, rounds: usize, spell: Duration) -> Row {
        let key: Vec<u8> = (0..(case.key_bits / 4) as u8).collect();
        let mut data = vec![0x5A; case.request];
        let mut contestants = vec![("OpenSSL".to_owned(), openssl(case, &key))];
        for kernel in Kernel::available() {
            contestants.push((kernel.to_string(), ours(case, &key, kernel)));
        }
        check_agreement(&mut contestants, case.request);
        let mut samples: Vec<(String, Vec<f64>)> = contestants
            .iter()
            .map(|(name, _)| (name.clone(), Vec::new()))
            .collect();
        for _ in 0..rounds {
            for ((_, work), (_, samples)) in contestants.iter_mut().zip(&mut samples) {
                samples.push(speed(spell, &mut data, work));
            }
        }
        Row { case, samples }
    }

    /// Returns the median of the contestant's speeds divided by OpenSSL's of the same round.
    fn ratio(&self, samples: &[f64]) -> f64 {
        let rival = &self.samples[0].1;
        median(
            samples
                .iter()
                .zip(rival)
                .map(|(ours, theirs)| ours / theirs)
                .collect(),
        )
    }
}

type Work = Box<dyn FnMut(u64, &mut [u8])>;

fn ours(case: Case, key: &[u8], kernel: Kernel) -> Work {
    let xts = Xts::with_kernel(key, case.sector, kernel).expect("an available kernel");
    match case.way {
        Direction::Encrypt => Box::new(move |unit, data| xts.encrypt(Tweak::new(unit), data)),
        Direction::Decrypt => Box::new(move |unit, data| xts.decrypt(Tweak::new(unit), data)),
    }
}

fn openssl(case: Case, key: &[u8]) -> Work {
    let cipher = if key.len() == 32 {
        Cipher::aes_128_xts()
    } else {
        Cipher::aes_256_xts()
    };
    let mut ctx = CipherCtx::new().expect("a context");
    match case.way {
        Direction::Encrypt => ctx.encrypt_init(Some(cipher), Some(key), None),
        Direction::Decrypt => ctx.decrypt_init(Some(cipher), Some(key), None),
    }
    .expect("the key");
    let bytes = case.sector.bytes() as usize;
    Box::new(move |first, data| {
        for (index, sector) in data.chunks_exact_mut(bytes).enumerate() {
            let iv = u128::from(first + index as u64 * (bytes as u64 / 512)).to_le_bytes();
            match case.way {
                Direction::Encrypt => ctx.encrypt_init(None, None, Some(&iv)),
                Direction::Decrypt => ctx.decrypt_init(None, None, Some(&iv)),
            }
            .expect("the tweak");
            ctx.cipher_update_inplace(sector, bytes).expect("the data");
        }
    })
}

/// Checks that all contestants produce the same bytes; otherwise the comparison is meaningless.
fn check_agreement(contestants: &mut [(String, Work)], request: usize) {
    let mut right: Option<Vec<u8>> = None;
    for (name, work) in contestants {
        let mut data: Vec<u8> = (0..request).map(|at| (at ^ (at >> 8)) as u8).collect();
        work(123, &mut data);
        assert!(
            *right.get_or_insert_with(|| data.clone()) == data,
            "{name} gives other bytes"
        );
    }
}

/// Returns the bytes per CPU-second over about `spell` of CPU time.
fn speed(spell: Duration, data: &mut [u8], work: &mut Work) -> f64 {
    let batch = ((1 << 20) / data.len()).max(1);
    let step = data.len() as u64 / 512;
    let (mut unit, mut bytes) = (0, 0);
    work(unit, data); // warms the CPU cache with keys, code and data
    let start = thread_cpu();
    loop {
        for _ in 0..batch {
            work(unit, data);
            unit += step;
            bytes += data.len();
        }
        let spent = thread_cpu().saturating_sub(start);
        if spent >= spell {
            return bytes as f64 / spent.as_secs_f64();
        }
    }
}

fn thread_cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        (values[middle - 1] + values[middle]) / 2.0
    } else {
        values[middle]
    }
}

fn way(direction: Direction) -> &'static str {
    match direction {
        Direction::Encrypt => "encrypt",
        Direction::Decrypt => "decrypt",
    }
}

fn print_table(rows: &[Row]) {
    println!(
        "GB per CPU-second of one thread, and the ratio to {}.\n",
        openssl::version::version()
    );
    let names: Vec<&str> = rows[0]
        .samples
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    println!("| AES | sector | request | | {} |", names.join(" | "));
    println!("|---|---|---|---|{}", "---|".repeat(names.len()));
    for row in rows {
        let Case {
            key_bits,
            sector,
            request,
            way: direction,
        } = row.case;
        print!(
            "| {key_bits} | {} | {} KiB | {} |",
            sector.bytes(),
            request >> 10,
            way(direction)
        );
        for (index, (_, samples)) in row.samples.iter().enumerate() {
            let speed = median(samples.clone()) / 1e9;
            if index == 0 {
                print!(" {speed:.2} |");
            } else {
                print!(" {speed:.2} ({:.2} x) |", row.ratio(samples));
            }
        }
        println!();
    }
}

fn as_json(rows: &[Row], rounds: usize, spell: Duration) -> Value {
    let row = |row: &Row| {
        let contestant = |(name, samples): &(String, Vec<f64>)| {
            json!({
                "name": name,
                "bytes_per_cpu_second": samples,
                "median": median(samples.clone()),
                "ratio_to_openssl": row.ratio(samples),
            })
        };
        json!({
            "key_bits": row.case.key_bits,
            "sector_bytes": row.case.sector.bytes(),
            "request_bytes": row.case.request,
            "direction": way(row.case.way),
            "contestants": row.samples.iter().map(contestant).collect::<Vec<_>>(),
        })
    };
    json!({
        "openssl": openssl::version::version(),
        "rounds": rounds,
        "spell_ms": spell.as_millis() as u64,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}
