//! Sends requests that need no authentication to an AFS cell's servers: a minimal client.
//!
//! ```text
//!   probe 10.77.0.1          # volume location at port 7003, files at 7000
//!   probe 10.77.0.1 fetch VOLUME VNODE UNIQUE BYTES TIMES
//! ```
//!
//! `fetch` reads the first bytes of a file repeatedly and prints the throughput.

use rx::{Abort, Call, Connection, Error, Port, Service, Settings, Timeouts};
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Service ids and procedure numbers (OpenAFS, `src/vlserver/vldbint.xg`, `src/fsint/afsint.xg`).
const VL: u16 = 52;
const FILES: u16 = 1;
const VL_PROBE: u32 = 514;
const VL_CAPABILITIES: u32 = 65_537;
const FS_GET_TIME: u32 = 153;
const FS_CAPABILITIES: u32 = 65_540;
const FS_FETCH_DATA_64: u32 = 65_537;
/// Callback procedure that a file server calls at its clients (`afscbint.xg`).
const CB_TELL_ME_ABOUT_YOURSELF: u32 = 65_538;
const CB_OPCODE_UNKNOWN: i32 = -455;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match probe(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn probe(args: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let (server, rest) = args.split_first().ok_or("an address is missing")?;
    let ip: IpAddr = server.parse()?;
    let settings = Settings {
        listen: ([0, 0, 0, 0], 0).into(),
        ..Settings::default()
    };
    let callbacks = Service {
        id: FILES,
        handler: Arc::new(called_back),
    };
    let port = Port::open(&settings, vec![callbacks])?;
    let locate = port.connect((ip, 7003).into(), VL, Timeouts::default());
    let files = port.connect((ip, 7000).into(), FILES, Timeouts::default());
    if let [_, volume, vnode, unique, bytes, times] = rest {
        let file = [volume.parse()?, vnode.parse()?, unique.parse()?];
        return fetch(&files, file, bytes.parse()?, times.parse()?);
    }
    for (name, connection, opcode) in [
        ("VL_ProbeServer", &locate, VL_PROBE),
        ("VL_GetCapabilities", &locate, VL_CAPABILITIES),
        ("FS GetTime", &files, FS_GET_TIME),
        ("FS GetCapabilities", &files, FS_CAPABILITIES),
    ] {
        match connection.request(words(&[opcode]), 1000) {
            Ok(reply) => println!("{name}: {:?}", from_words(&reply)),
            Err(e) => println!("{name}: {e}"),
        }
    }
    Ok(())
}

fn fetch(
    files: &Connection,
    [volume, vnode, unique]: [u32; 3],
    bytes: u32,
    times: u32,
) -> Result<(), Box<dyn std::error::Error>> {
    let start = Instant::now();
    let mut all = 0;
    for _ in 0..times {
        let mut call = files.call()?;
        call.write(words(&[
            FS_FETCH_DATA_64,
            volume,
            vnode,
            unique,
            0,
            0,
            0,
            bytes,
        ]))?;
        call.finish()?;
        let mut length = [0; 8];
        call.read_exact(&mut length)?;
        let mut left = u64::from_be_bytes(length);
        all += left;
        while left > 0 {
            let max = usize::try_from(left)?;
            left -= call.read_up_to(max)?.ok_or(Error::Short)?.len() as u64;
        }
        // Status, callback and volume synchronization: 30 words.
        if call.read_to_end(1000)?.len() != 120 {
            return Err("the reply does not end as it should".into());
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{all} bytes, {:.1} MB/s", all as f64 / seconds / 1e6);
    Ok(())
}

/// Answers a file server's callbacks, which it makes before it serves a client.
fn called_back(call: &mut Call) -> Result<(), Abort> {
    let request = call.read_to_end(4096)?;
    match from_words(&request).first() {
        // An identity of 11 words, no addresses, no capabilities.
        Some(&CB_TELL_ME_ABOUT_YOURSELF) => {
            let mut reply = vec![0; 1 + 11 + 3 * 32 + 1];
            reply[3] = std::process::id();
            call.write(words(&reply))?;
            Ok(())
        }
        Some(204..=206 | 213) => Ok(()),
        _ => Err(Abort(CB_OPCODE_UNKNOWN)),
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn from_words(bytes: &[u8]) -> Vec<u32> {
    let word = |chunk: &[u8]| chunk.try_into().map(u32::from_be_bytes).unwrap_or(0);
    bytes.chunks_exact(4).map(word).collect()
}
