//! Shared test code: running `cryptsetup`, and applying header changes to a file, as `crypt` does.
//!
//! `cryptsetup` must be installed; a test that cannot run it fails.
#![allow(dead_code)]

use block_testing::Random;
use luks2::{
    Argon2Cost, FormatOptions, Hash, Header, Kdf, KdfLimits, Opened, PREFIX_BYTES_MAX, Plan,
    Priority, Step,
};
use secret::SecretBytes;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Size of the images: the header area of 16 MiB and 1 MiB of data. They are sparse.
pub(crate) const IMAGE_BYTES: u64 = 17 * 1024 * 1024;

/// The lowest costs that `cryptsetup` accepts.
pub(crate) const ARGON2ID: Kdf = Kdf::Argon2id(Argon2Cost {
    time: 4,
    memory_kib: 32,
    cpus: 1,
});
pub(crate) const PBKDF2: Kdf = Kdf::Pbkdf2 {
    hash: Hash::Sha256,
    iterations: 1000,
};

/// An image file in its own directory.
pub(crate) struct Image {
    dir: TempDir,
    pub(crate) path: PathBuf,
}

impl Image {
    pub(crate) fn new(bytes: u64) -> Image {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("image");
        File::create(&path)
            .and_then(|f| f.set_len(bytes))
            .expect("an image file");
        Image { dir, path }
    }

    /// Creates an image that contains `bytes`.
    pub(crate) fn of(bytes: &[u8]) -> Image {
        let image = Image::new(bytes.len() as u64);
        image.write(0, bytes);
        image
    }

    /// Creates an image formatted by `cryptsetup` with passphrase `pw` and the cheapest key
    /// derivation.
    pub(crate) fn by_cryptsetup(options: &[&str]) -> Image {
        let image = Image::new(IMAGE_BYTES);
        let kdf = if options.contains(&"pbkdf2") {
            PBKDF2_ARGS
        } else {
            ARGON2_ARGS
        };
        let args = [
            &["luksFormat", "-q", "--type", "luks2", "--key-file=-"],
            kdf,
            options,
        ]
        .concat();
        expect(&image.cryptsetup(&args, "pw"));
        image
    }

    /// Writes a file next to the image; returns its path.
    pub(crate) fn beside(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, bytes).expect("a file beside the image");
        path.to_str().expect("UTF-8").to_owned()
    }

    /// Runs `cryptsetup ARGS[0] IMAGE ARGS[1..]` with `input` on its standard input.
    pub(crate) fn cryptsetup(&self, args: &[&str], input: &str) -> Output {
        let path = self.path.to_str().expect("UTF-8");
        let mut all = vec![args[0], path];
        all.extend(&args[1..]);
        cryptsetup(&all, input)
    }

    /// Checks whether `cryptsetup` opens the volume with `passphrase`.
    pub(crate) fn opens(&self, passphrase: &str) -> bool {
        let args = ["open", "--test-passphrase", "--key-file=-"];
        self.cryptsetup(&args, passphrase).status.success()
    }

    /// Returns the volume key, as `cryptsetup` recovers it with passphrase `pw`.
    pub(crate) fn volume_key(&self) -> Vec<u8> {
        let to = self.dir.path().join("volume-key");
        let _ = std::fs::remove_file(&to);
        let file = format!("--volume-key-file={}", to.to_str().expect("UTF-8"));
        let args = ["luksDump", "-q", "--dump-volume-key", &file, "--key-file=-"];
        expect(&self.cryptsetup(&args, "pw"));
        std::fs::read(&to).expect("the volume key")
    }

    pub(crate) fn dump(&self) -> serde_json::Value {
        let out = self.cryptsetup(&["luksDump", "--dump-json-metadata"], "");
        expect(&out);
        serde_json::from_slice(&out.stdout).expect("JSON")
    }

    pub(crate) fn size(&self) -> u64 {
        std::fs::metadata(&self.path).expect("the image").len()
    }

    pub(crate) fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        let file = File::open(&self.path).expect("the image");
        file.read_exact_at(&mut bytes, offset)
            .expect("bytes of the image");
        bytes
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let file = OpenOptions::new()
            .write(true)
            .open(&self.path)
            .expect("the image");
        file.write_all_at(bytes, offset)
            .expect("bytes of the image");
    }

    pub(crate) fn prefix(&self) -> Vec<u8> {
        self.read(0, self.size().min(PREFIX_BYTES_MAX))
    }

    pub(crate) fn open(&self) -> luks2::Result<Opened> {
        Header::open(&self.prefix(), self.size())
    }

    pub(crate) fn header(&self) -> Header {
        let opened = self.open().expect("a header");
        assert!(!opened.needs_repair(), "{opened:?}");
        opened.header
    }

    pub(crate) fn carry_out(&self, plan: Plan) {
        for step in plan {
            if let Step::Write { offset, bytes } = step {
                assert!(
                    offset % 4096 == 0 && bytes.len() % 4096 == 0,
                    "misaligned write"
                );
                self.write(offset, &bytes);
            }
        }
    }

    /// Recovers the volume key with this crate from `slot` with `passphrase`.
    pub(crate) fn unlock(
        &self,
        header: &Header,
        slot: u32,
        passphrase: &str,
    ) -> luks2::Result<SecretBytes> {
        let area = header.keyslot_area(slot)?;
        let bytes = self.read(area.offset, area.len);
        header.open_keyslot(slot, passphrase.as_bytes(), &bytes, &KdfLimits::default())
    }
}

const ARGON2_ARGS: &[&str] = &[
    "--pbkdf-memory=32",
    "--pbkdf-force-iterations=4",
    "--pbkdf-parallel=1",
];
const PBKDF2_ARGS: &[&str] = &["--pbkdf-force-iterations=1000"];

pub(crate) fn cryptsetup(args: &[&str], input: &str) -> Output {
    use std::io::Write;
    let mut child = Command::new(test_support::installed("cryptsetup"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    // A cryptsetup that does not read its input closes the pipe; that is not a failure.
    let _ = child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(input.as_bytes());
    child.wait_with_output().expect("cryptsetup ends")
}

/// Panics with the standard error of the program if it failed.
pub(crate) fn expect(out: &Output) {
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

/// Creates a volume with this crate, with passphrase `pw` in keyslot 0; returns it with its key.
pub(crate) fn formatted(options: &FormatOptions, kdf: &Kdf) -> (Image, SecretBytes) {
    let image = Image::new(options.device_size);
    let key = luks2::generate_volume_key(options.key_bits).expect("a key");
    let mut header = Header::format(options, &key).expect("a header");
    let slot = header
        .add_keyslot(&key, b"pw", kdf, None, Priority::Normal)
        .expect("a keyslot");
    assert_eq!(slot, 0);
    image.carry_out(header.update().expect("a plan"));
    (image, key)
}

pub(crate) fn options() -> FormatOptions {
    FormatOptions {
        digest_iterations: 1000,
        ..FormatOptions::new(IMAGE_BYTES)
    }
}

/// A pseudo-random generator; tests print its seed.
pub(crate) struct Rng(Random);

impl Rng {
    /// Seeds from the environment variable `EVFS_SEED`, or at random; prints the seed.
    pub(crate) fn seeded(test: &str) -> Rng {
        let random = || u64::from_le_bytes(SecretBytes::random(8)[..].try_into().expect("8"));
        let given = std::env::var("EVFS_SEED").ok().and_then(|s| s.parse().ok());
        let seed = given.unwrap_or_else(random);
        println!("replay with: EVFS_SEED={seed} cargo test -p evfs-luks2 {test}");
        Rng(Random::new(seed))
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound as u64) as usize
    }
}
