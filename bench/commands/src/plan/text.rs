//! The answer of `evfs plan` in words: a verdict in one sentence, then the figures behind it.

use super::{Args, place};
use bench_core::figures::change;
use bench_study::Judgement;
use bench_study::price::{Half, Price};
use stack::signature;
use std::fmt::Write as _;

/// States the cost of the strongest cipher in one sentence.
pub(super) fn verdict(device: &str, prices: &[Price], theta: f64) -> String {
    let Some(price) = prices.last() else {
        return format!("The cost of encrypting {device} could not be measured.");
    };
    let cpu = price.cpu_more_s_gib.max(0.0);
    format!(
        "Encrypting {device} with {} {}, and adds {cpu:.2} CPU seconds per GiB ({:.2} CPUs at the \
         full read rate).",
        bits(&price.side),
        reads(&price.reads, theta),
        price.cores_at_full_rate
    )
}

/// Names the key length of a stack: `encrypted-256` has 256 bits.
fn bits(side: &str) -> String {
    match side.strip_prefix("encrypted-") {
        Some(bits) => format!("{bits} bits"),
        None => side.to_owned(),
    }
}

/// Describes the effect on the rate of reads.
fn reads(half: &Half, theta: f64) -> String {
    let Some(rate) = half.rate else {
        return "has an unknown effect on reads".into();
    };
    let plain = |rate: f64| change(rate).trim_start_matches(['+', '-']).to_owned();
    let size = plain(rate);
    let word = if rate < 1.0 { "slower" } else { "faster" };
    let interval = interval(half);
    match half.judgement {
        Judgement::Worse | Judgement::Better => {
            format!("makes reads {size} {word} ({interval})")
        }
        Judgement::Same => format!(
            "changes the rate of reads by no more than {:.0} % ({interval})",
            theta * 100.0
        ),
        Judgement::Noise => {
            format!("slows reads by no more than the noise of this machine ({interval})")
        }
        Judgement::Undecided | Judgement::NoInterval => {
            format!(
                "has an undecided effect on reads ({}, {interval})",
                change(rate)
            )
        }
    }
}

/// Formats the interval of a change of the rate.
fn interval(half: &Half) -> String {
    half.rate_interval.map_or("no interval".into(), |i| {
        format!("95 % interval {} to {}", change(i.low), change(i.high))
    })
}

/// Describes the figures of each cipher, and the next step.
pub(super) fn describe(text: &mut String, args: &Args, prices: &[Price], holds: Option<&str>) {
    let mix = &args.workload;
    let _ = writeln!(text, "{}: {}\n", mix.name, mix.what);
    let medium = match args.scratch {
        Some(_) => Medium::Disk,
        None => Medium::Memory,
    };
    for price in prices {
        let _ = writeln!(text, "{}:", price.side);
        half(text, "reads of the device", &price.reads, Medium::Disk);
        half(
            text,
            &format!("writes in {}", place(args)),
            &price.writes,
            medium,
        );
        let _ = writeln!(
            text,
            "  encryption adds {:.2} CPU seconds per GiB:\n    one CPU sustains {:.1} GiB/s; {:.2} \
             CPUs are busy at the read rate of the device ({:.0} MiB/s)",
            price.cpu_more_s_gib.max(0.0),
            price.gib_s_of_a_core.min(999.0),
            price.cores_at_full_rate,
            price.reads.clear_mib_s,
        );
    }
    if let [first, .., last] = prices {
        let more = last.cpu_more_s_gib - first.cpu_more_s_gib;
        let _ = writeln!(
            text,
            "\n{} instead of {}: {:+.2} CPU seconds per GiB.",
            last.side, first.side, more
        );
    }
    let device = args.device.display();
    let next = if holds.is_some_and(signature::is_volume) {
        format!("It holds an encrypted volume already: `evfs attach {device}` opens it.")
    } else {
        format!(
            "next: copy its content elsewhere, then run `evfs volume create {device} --owner NAME \
             --force`"
        )
    };
    let _ = writeln!(text, "{next}");
}

/// Place of the measured bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Medium {
    Disk,
    Memory,
}

/// Formats the rate and the CPU of one direction; a rate in memory says nothing about a disk, and
/// is omitted.
fn half(text: &mut String, what: &str, half: &Half, medium: Medium) {
    let _ = writeln!(text, "  {what}:");
    if let (Some(rate), Medium::Disk) = (half.rate, medium) {
        let _ = writeln!(
            text,
            "    {:.0} MiB/s instead of {:.0}: {} ({}), {}",
            half.mib_s,
            half.clear_mib_s,
            change(rate),
            interval(half),
            words(half.judgement)
        );
    }
    let between = half.cpu_more_interval.map_or(String::new(), |(low, high)| {
        format!(" (between {low:+.3} and {high:+.3})")
    });
    let _ = writeln!(
        text,
        "    {:.3} CPU seconds per GiB instead of {:.3}: {:+.3}{between}",
        half.clear_cpu_s_gib + half.cpu_more_s_gib,
        half.clear_cpu_s_gib,
        half.cpu_more_s_gib,
    );
}

fn words(judgement: Judgement) -> &'static str {
    match judgement {
        Judgement::Better => "faster",
        Judgement::Worse => "slower",
        Judgement::Same => "no relevant difference",
        Judgement::Noise => "within the noise of this machine",
        Judgement::Undecided | Judgement::NoInterval => "undecided on this machine now",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_core::Interval;

    fn price(judgement: Judgement) -> Price {
        let half = Half {
            clear_mib_s: 1094.0,
            mib_s: 987.0,
            rate: Some(0.902),
            rate_interval: Some(Interval {
                low: 0.811,
                high: 0.967,
                confidence: 0.97,
                rank_low: 2,
                rank_high: 9,
            }),
            judgement,
            clear_cpu_s_gib: 0.25,
            cpu_more_s_gib: 0.26,
            cpu_more_interval: Some((0.2, 0.3)),
        };
        Price {
            side: "encrypted-256".into(),
            reads: half.clone(),
            writes: half,
            cpu_more_s_gib: 0.26,
            gib_s_of_a_core: 3.8,
            cores_at_full_rate: 0.28,
        }
    }

    #[test]
    fn the_verdict_is_one_sentence() {
        let said = verdict("disk.img", &[price(Judgement::Worse)], 0.05);
        assert_eq!(
            said,
            "Encrypting disk.img with 256 bits makes reads 9.8 % slower (95 % interval -18.9 % to \
             -3.3 %), and adds 0.26 CPU seconds per GiB (0.28 CPUs at the full read rate)."
        );
        for (judgement, word) in [
            (Judgement::Same, "no more than 5 %"),
            (Judgement::Noise, "noise of this machine"),
            (Judgement::Undecided, "undecided"),
        ] {
            let said = verdict("disk.img", &[price(judgement)], 0.05);
            assert!(said.contains(word) && said.contains("-18.9 %"), "{said}");
            assert!(!said.contains('\n'), "{said}");
        }
        assert!(verdict("x", &[], 0.05).contains("could not be measured"));
    }

    #[test]
    fn a_rate_in_memory_is_not_printed() {
        let (mut disk, mut memory) = (String::new(), String::new());
        let of = &price(Judgement::Worse).reads;
        half(&mut disk, "reads", of, Medium::Disk);
        half(&mut memory, "writes", of, Medium::Memory);
        assert!(disk.contains("987 MiB/s instead of 1094: -9.8 %"), "{disk}");
        assert!(
            !memory.contains("MiB/s") && memory.contains("+0.260"),
            "{memory}"
        );
    }
}
