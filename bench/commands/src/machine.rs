//! `evfs bench machine`: ciphers, key derivation and memory on this machine.

use cli::Context;
use cli::document::Document;
use cli::output;
use cli::table::{self, Column::Left, Column::Right};
use schemars::JsonSchema;
use serde::Serialize;
use stack::{Result, exit};
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use xts::{Direction, Kernel, SectorSize};

/// Bytes of a request, as in the measurements of the documentation.
const REQUEST_BYTES: usize = 64 * 1024;

#[derive(clap::Args)]
#[command(
    after_help = "Rates are in 10^9 bytes per second of CPU time. Volumes use the kernel marked with *."
)]
pub struct Args {
    /// Duration of each measurement in milliseconds
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    milliseconds: u64,
}

/// Rates of ciphers, key derivation and memory on this machine.
#[derive(Serialize, JsonSchema)]
pub struct Rates {
    /// Cipher kernel that volumes use.
    kernel: String,
    /// Rates of all kernels.
    ciphers: Vec<CipherRate>,
    /// Bytes per second copied in memory.
    memory_copy_bytes_per_s: f64,
    /// Key derivation for a new passphrase.
    kdf: String,
    /// Time to choose its cost, in milliseconds.
    kdf_choice_ms: u64,
}

/// Rates of a cipher kernel.
#[derive(Serialize, JsonSchema)]
struct CipherRate {
    /// Name of the kernel.
    kernel: String,
    /// Length of the AES key in bits.
    key_bits: u32,
    /// Size of an encryption sector in bytes.
    sector_size: u32,
    /// Bytes encrypted per second of CPU time.
    encrypt_bytes_per_cpu_s: f64,
    /// Bytes decrypted per second of CPU time.
    decrypt_bytes_per_cpu_s: f64,
}

pub const RATES: Document<Rates> = Document::new("evfs/bench-machine/1");

struct Row {
    kernel: Kernel,
    key_bits: u32,
    sector: SectorSize,
    encrypt: f64,
    decrypt: f64,
}

pub fn run(context: &Context, args: Args) -> Result<u8> {
    let time = Duration::from_millis(args.milliseconds);
    output::say(context.json, "measuring ciphers");
    let rows = ciphers(time);
    output::say(context.json, "measuring memory and key derivation");
    let memory = memory_rate(time);
    let start = Instant::now();
    let kdf = stack::volume::describe_kdf(&stack::volume::passphrase_kdf(&context.settings));
    let kdf_choice = start.elapsed();
    let best = Kernel::best();
    let cipher = |r: &Row| CipherRate {
        kernel: r.kernel.to_string(),
        key_bits: r.key_bits,
        sector_size: r.sector.bytes(),
        encrypt_bytes_per_cpu_s: r.encrypt,
        decrypt_bytes_per_cpu_s: r.decrypt,
    };
    let content = Rates {
        kernel: best.to_string(),
        ciphers: rows.iter().map(cipher).collect(),
        memory_copy_bytes_per_s: memory,
        kdf,
        kdf_choice_ms: kdf_choice.as_millis() as u64,
    };
    output::show(context.json, &RATES, &content, || {
        let head = ["kernel", "bits", "sector", "encrypt", "decrypt"];
        let mut cells = vec![head.map(str::to_owned)];
        for r in &rows {
            cells.push([
                format!("{}{}", r.kernel, if r.kernel == best { " *" } else { "" }),
                r.key_bits.to_string(),
                r.sector.bytes().to_string(),
                format!("{:.2} GB/s", r.encrypt / 1e9),
                format!("{:.2} GB/s", r.decrypt / 1e9),
            ]);
        }
        let columns = [Left(11), Right(5), Right(7), Right(11), Right(11)];
        let mut text = table::text(&columns, &cells);
        let _ = writeln!(text, "memory copy {:.1} GB/s", memory / 1e9);
        let kdf = &content.kdf;
        let _ = writeln!(text, "key derivation for a passphrase: {kdf}");
        text
    });
    Ok(exit::OK)
}

fn ciphers(time: Duration) -> Vec<Row> {
    let mut rows = Vec::new();
    for kernel in Kernel::available() {
        for key_bits in [128, 256] {
            for sector in [SectorSize::B512, SectorSize::B4096] {
                let rate = |direction| {
                    xts::measure_direction(
                        direction,
                        kernel,
                        key_bits,
                        sector,
                        REQUEST_BYTES,
                        time / 2,
                    )
                };
                let (encrypt, decrypt) = (rate(Direction::Encrypt), rate(Direction::Decrypt));
                rows.push(Row {
                    kernel,
                    key_bits,
                    sector,
                    encrypt,
                    decrypt,
                });
            }
        }
    }
    rows
}

/// Measures the bytes per second copied between two buffers that exceed the CPU caches.
fn memory_rate(time: Duration) -> f64 {
    let from = vec![1u8; 64 << 20];
    let mut to = vec![0u8; from.len()];
    let start = Instant::now();
    let mut bytes = 0.0;
    while bytes == 0.0 || start.elapsed() < time {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        bytes += from.len() as f64;
    }
    bytes / start.elapsed().as_secs_f64()
}
