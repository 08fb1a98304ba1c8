//! Properties that hold for every kernel, and comparisons of the kernels with each other.

use proptest::collection::vec;
use proptest::prelude::*;
use xts::{Error, Kernel, SectorSize, Tweak, Xts};

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 32), vec(any::<u8>(), 64)].prop_filter("halves differ", |key| {
        key[..key.len() / 2] != key[key.len() / 2..]
    })
}

fn sector() -> impl Strategy<Value = SectorSize> {
    prop_oneof![Just(SectorSize::B512), Just(SectorSize::B4096)]
}

fn tweak() -> impl Strategy<Value = Tweak> {
    prop_oneof![any::<u64>(), 0..100u64, u64::MAX - 100..=u64::MAX].prop_map(Tweak::new)
}

/// Generates a key, a sector size, a first tweak, whole sectors of data and an allocation offset.
fn case() -> impl Strategy<Value = (Vec<u8>, SectorSize, Tweak, Vec<u8>, usize)> {
    (
        key(),
        sector(),
        tweak(),
        0..20usize,
        0..65usize,
        any::<u64>(),
    )
        .prop_map(|(key, sector, tweak, count, shift, seed)| {
            let len = count * sector.bytes() as usize;
            let data = (0..len as u64).map(|at| (seed.rotate_left(at as u32) ^ at) as u8);
            (key, sector, tweak, data.collect(), shift)
        })
}

fn each_kernel(key: &[u8], sector: SectorSize) -> Vec<Xts> {
    let kernels = Kernel::available();
    let made = kernels
        .into_iter()
        .map(|kernel| Xts::with_kernel(key, sector, kernel));
    made.collect::<Result<_, Error>>()
        .expect("available kernels work")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn kernels_give_the_same_bytes_both_ways((key, sector, tweak, data, shift) in case()) {
        let mut first: Option<(Vec<u8>, Vec<u8>)> = None;
        for xts in each_kernel(&key, sector) {
            let mut room = [&vec![0; shift], &data[..]].concat();
            xts.encrypt(tweak, &mut room[shift..]);
            let encrypted = room[shift..].to_vec();
            let mut decrypted = vec![0; data.len()];
            xts.decrypt_to(tweak, &data, &mut decrypted);
            let both = (encrypted, decrypted);
            prop_assert!(*first.get_or_insert_with(|| both.clone()) == both, "{:?}", xts);
        }
    }

    #[test]
    fn deciphering_undoes_enciphering((key, sector, tweak, data, _) in case()) {
        for xts in each_kernel(&key, sector) {
            let mut there = vec![0; data.len()];
            xts.encrypt_to(tweak, &data, &mut there);
            prop_assert!(data.is_empty() || there != data);
            xts.decrypt(tweak, &mut there);
            prop_assert!(there == data, "{:?}", xts);
        }
    }

    /// The property that makes it safe to split a request between any two sectors.
    #[test]
    fn a_run_cut_in_two_gives_the_bytes_of_the_whole(
        (key, sector, tweak, data, _) in case(),
        cut in 0..20u64,
    ) {
        for xts in each_kernel(&key, sector) {
            let mut whole = data.clone();
            xts.encrypt(tweak, &mut whole);
            let bytes = u64::from(sector.bytes());
            let cut = cut.min(data.len() as u64 / bytes);
            let mut parts = data.clone();
            let (left, right) = parts.split_at_mut((cut * bytes) as usize);
            xts.encrypt(tweak, left);
            xts.encrypt(tweak.after(cut * bytes), right);
            prop_assert!(parts == whole, "{:?}", xts);
        }
    }
}

/// LUKS2 never sets `iv_large_sectors`: the second sector of 4096 bytes has number 8, not 1.
#[test]
fn sectors_of_4096_bytes_are_numbered_in_units_of_512() {
    let key: Vec<u8> = (0..64).collect();
    for xts in each_kernel(&key, SectorSize::B4096) {
        let mut two = vec![0x3C; 8192];
        xts.encrypt(Tweak::new(100), &mut two);
        let mut second = vec![0x3C; 4096];
        xts.encrypt(Tweak::new(108), &mut second);
        assert!(two[4096..] == second, "{xts:?}");
    }
}

#[test]
fn one_cipher_serves_many_threads() {
    let key: Vec<u8> = (0..64).collect();
    for xts in each_kernel(&key, SectorSize::B512) {
        let mut right = vec![7; 16 * 512];
        xts.encrypt(Tweak::ZERO, &mut right);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let mut data = vec![7; 16 * 512];
                        xts.encrypt(Tweak::ZERO, &mut data);
                        assert!(data == right, "{xts:?}");
                    }
                });
            }
        });
    }
}
