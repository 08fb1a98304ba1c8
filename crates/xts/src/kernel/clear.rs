//! Clears the data that a kernel leaves in registers, which a core dump contains, and on the stack.
//!
//! The kernels are designed to keep secrets off the stack, but the compiler may spill registers,
//! and the portable kernel uses a scratch buffer. Overwriting is cheap and does not depend on the
//! compiler's choices.

/// Bytes of stack overwritten after the portable kernel. Tweaks were found in its frames and those
/// of the `aes` crate down to 11 KiB in release builds and 14 KiB in debug builds.
const PORTABLE_STACK_BYTES: usize = 20 * 1024;

/// Bytes of stack overwritten after the kernels made of intrinsics. In release builds AES-NI was
/// found to spill tweaks down to 270 bytes and VAES-512 nothing at all, in debug builds both down
/// to 880 bytes. Kept small because a request of 4 KiB takes only 500 cycles.
#[cfg(target_arch = "x86_64")]
const INTRINSICS_STACK_BYTES: usize = if cfg!(debug_assertions) { 4096 } else { 1024 };

/// Clears stack and registers after the portable kernel or a key expansion.
///
/// Must be called from the function that called the kernel, so that both use the same stack below
/// it. The stack is cleared first, because clearing it may use registers.
pub(super) fn after_portable() {
    stack::<PORTABLE_STACK_BYTES>();
    registers();
}

/// Clears stack and registers after a kernel made of intrinsics; see [`after_portable`].
#[cfg(target_arch = "x86_64")]
pub(super) fn after_intrinsics() {
    stack::<INTRINSICS_STACK_BYTES>();
    registers();
}

#[inline(never)]
fn stack<const BYTES: usize>() {
    let mut frame = [0u8; BYTES];
    // SAFETY: the block has no instruction. As far as the compiler knows it reads the live local
    // whose address it takes, so the zeros must be in memory before it.
    unsafe {
        std::arch::asm!("/* {0} */", in(reg) frame.as_mut_ptr(), options(nostack, preserves_flags));
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn registers() {}

/// Zeroes the vector registers and the general ones that a callee may leave data in.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
fn registers() {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature was just detected.
        unsafe { registers_avx512() };
    } else if is_x86_feature_detected!("avx") {
        // SAFETY: the feature was just detected.
        unsafe { registers_avx() };
    } else {
        registers_sse();
    }
    // SAFETY: writes the registers it declares as clobbered and nothing else.
    unsafe {
        std::arch::asm!(
            "xor eax, eax", "xor ecx, ecx", "xor edx, edx", "xor esi, esi", "xor edi, edi",
            "xor r8d, r8d", "xor r9d, r9d", "xor r10d, r10d", "xor r11d, r11d",
            out("rax") _, out("rcx") _, out("rdx") _, out("rsi") _, out("rdi") _,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            options(nostack, nomem),
        );
    }
}

/// Clears registers 0 to 15 to their full width by `vzeroall`, and 16 to 31 by name.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn registers_avx512() {
    // SAFETY: writes vector registers only, all of which `clobber_abi` declares.
    unsafe {
        std::arch::asm!(
            "vzeroall",
            "vpxord zmm16, zmm16, zmm16",
            "vpxord zmm17, zmm17, zmm17",
            "vpxord zmm18, zmm18, zmm18",
            "vpxord zmm19, zmm19, zmm19",
            "vpxord zmm20, zmm20, zmm20",
            "vpxord zmm21, zmm21, zmm21",
            "vpxord zmm22, zmm22, zmm22",
            "vpxord zmm23, zmm23, zmm23",
            "vpxord zmm24, zmm24, zmm24",
            "vpxord zmm25, zmm25, zmm25",
            "vpxord zmm26, zmm26, zmm26",
            "vpxord zmm27, zmm27, zmm27",
            "vpxord zmm28, zmm28, zmm28",
            "vpxord zmm29, zmm29, zmm29",
            "vpxord zmm30, zmm30, zmm30",
            "vpxord zmm31, zmm31, zmm31",
            clobber_abi("C"),
            options(nostack, nomem, preserves_flags),
        );
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
fn registers_avx() {
    // SAFETY: writes vector registers only, all of which `clobber_abi` declares.
    unsafe {
        std::arch::asm!(
            "vzeroall",
            clobber_abi("C"),
            options(nostack, nomem, preserves_flags)
        );
    }
}

#[cfg(target_arch = "x86_64")]
fn registers_sse() {
    // SAFETY: writes vector registers only, all of which `clobber_abi` declares.
    unsafe {
        std::arch::asm!(
            "pxor xmm0, xmm0",
            "pxor xmm1, xmm1",
            "pxor xmm2, xmm2",
            "pxor xmm3, xmm3",
            "pxor xmm4, xmm4",
            "pxor xmm5, xmm5",
            "pxor xmm6, xmm6",
            "pxor xmm7, xmm7",
            "pxor xmm8, xmm8",
            "pxor xmm9, xmm9",
            "pxor xmm10, xmm10",
            "pxor xmm11, xmm11",
            "pxor xmm12, xmm12",
            "pxor xmm13, xmm13",
            "pxor xmm14, xmm14",
            "pxor xmm15, xmm15",
            clobber_abi("C"),
            options(nostack, nomem, preserves_flags),
        );
    }
}
