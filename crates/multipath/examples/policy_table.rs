//! scratch
use multipath::policy::*;
use multipath::virtual_time::*;
fn main() {
    let mb = 1_000_000;
    let k = 1024;
    let eq = vec![Link::new(20 * mb, 0), Link::new(20 * mb, 0)];
    let mut l24 = vec![Link::new(20 * mb, 0), Link::new(40 * mb, 0)];
    l24[1].view.throughput = 2;
    let mut l18 = vec![Link::new(10 * mb, 0), Link::new(80 * mb, 0)];
    l18[1].view.throughput = 8;
    let p5 = vec![Link::new(20 * mb, 0), Link::new(20 * mb, 5_000_000)];
    let p30 = vec![Link::new(20 * mb, 100_000), Link::new(20 * mb, 30_000_000)];
    let one: &[u32] = &[4 * k];
    let mix: &[u32] = &[4 * k, 8 * k, 16 * k];
    let big: &[u32] = &[4096, 4096, 4096, 4096, 4096, 4096, 4096, 131072];
    let mut j: Vec<Link> = p5.clone();
    j[1].jitter = 2_000_000;
    j[0].jitter = 100_000;
    let mut je = eq.clone();
    je[0].jitter = 300_000;
    je[1].jitter = 300_000;
    je[0].base_latency = 80_000;
    je[1].base_latency = 80_000;
    let rows: Vec<(&str, Vec<Link>, &[u32], u32)> = vec![
        ("eq 4k 1", eq.clone(), one, 1),
        ("eq 4k 2", eq.clone(), one, 2),
        ("eq 4k 4", eq.clone(), one, 4),
        ("eq 4k 32", eq.clone(), one, 32),
        ("eq mix 4", eq.clone(), mix, 4),
        ("eq mix 8", eq.clone(), mix, 8),
        ("eq mix 32", eq.clone(), mix, 32),
        ("eq big 4", eq.clone(), big, 4),
        ("eq big 32", eq.clone(), big, 32),
        ("20+40 8", l24.clone(), one, 8),
        ("20+40 32", l24.clone(), one, 32),
        ("20+40 mix 8", l24.clone(), mix, 8),
        ("20+40 mix 32", l24.clone(), mix, 32),
        ("10+80 4", l18.clone(), one, 4),
        ("10+80 8", l18.clone(), one, 8),
        ("10+80 32", l18.clone(), one, 32),
        ("10+80 mix 32", l18.clone(), mix, 32),
        ("+5 1", p5.clone(), one, 1),
        ("+5 8", p5.clone(), one, 8),
        ("+5 32", p5.clone(), one, 32),
        ("+5 64", p5.clone(), one, 64),
        ("+5 mix 32", p5.clone(), mix, 32),
        ("+5j 8", j.clone(), one, 8),
        ("+5j 32", j.clone(), one, 32),
        ("+30 8", p30.clone(), one, 8),
        ("+30 32", p30.clone(), one, 32),
        ("+30 128", p30.clone(), one, 128),
        ("eqj 4", je.clone(), one, 4),
        ("eqj 32", je.clone(), one, 32),
        ("eqj mix 8", je.clone(), mix, 8),
    ];
    for threads in [1u32, 2] {
        for (name, links, sizes, depth) in rows.iter() {
            if threads == 2 && *depth < 8 {
                continue;
            }
            let load = Load::Closed {
                threads,
                depth: *depth / threads,
                sizes,
                time: 20_000_000_000,
            };
            print!("{name:14}");
            for p in [
                Policy::RoundRobin,
                Policy::LeastCmdLoad,
                Policy::ServiceTime,
                Policy::HistoricalServiceTime,
                Policy::PredictedFinish,
            ] {
                let r = ratio_to_best_single(links, p, &load, 1);
                let o = run(links, p, None, &load, 1);
                print!(" | {r:5.3} {:7.2} {:6.2}", o.p99 as f64 / 1e6, o.mean / 1e6);
            }
            println!();
        }
    }
}
