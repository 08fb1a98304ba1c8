//! Content of files that states the number of the store that wrote it.

/// Returns `bytes` bytes of a number, again and again.
pub fn content(number: u64, bytes: usize) -> Vec<u8> {
    let mut all = number.to_be_bytes().repeat(bytes / 8 + 1);
    all.truncate(bytes);
    all
}

/// Returns the smallest and the largest number in a content.
pub fn numbers(data: &[u8]) -> (u64, u64) {
    let numbers = data.as_chunks().0.iter().map(|w| u64::from_be_bytes(*w));
    numbers.fold((u64::MAX, 0), |(least, most), n| {
        (least.min(n), most.max(n))
    })
}
