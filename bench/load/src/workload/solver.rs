//! `solver`: solves a system of linear equations whose matrix does not fit in the configured
//! memory, like a structural analysis solver: the factor is in a scratch file, and two columns of
//! tiles are in memory at a time.
//!
//! ```text
//!   assemble: write columns ──► factor: for each column, read all previous ones and overwrite it
//!                           ──► solve: read all columns forward, then backward
//! ```
//!
//! The matrix is symmetric and positive definite (Cholesky, left-looking) and is generated from the
//! seed such that the solution is all ones. The result is checked against that, so a corrupted byte
//! is an error.
//!
//! Deliberately absent: sparse matrices and an optimized multiplication. The product and the models
//! used by the reports are commercial; this workload reproduces only its file access.

use bench_core::files::{Files, Open, OpenFile};
use bench_core::rng::Rng;
use bench_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::time::Instant;

const NAME: &str = "solver.scratch";
const ORDER_MAX: usize = 1 << 16;
const TILE_MAX: usize = 512;
/// Maximum deviation of the solution from ones; doubles leave about 1e-12 at these sizes.
const TOLERANCE: f64 = 1e-7;
const NUMBER: usize = size_of::<f64>();

/// Size of the system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Number of unknowns; a multiple of `tile`.
    pub order: usize,
    /// Rows and columns of a tile; reads and writes transfer whole tiles.
    pub tile: usize,
    /// Seed of the matrix.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            order: 1536,
            tile: 64,
            seed: 1,
        }
    }
}

impl Config {
    fn check(&self) -> Result<()> {
        let (order, tile) = (self.order, self.tile);
        let fits = (8..=TILE_MAX).contains(&tile) && (tile..=ORDER_MAX).contains(&order);
        if fits && order.is_multiple_of(tile) {
            Ok(())
        } else {
            Err(Error::Spec(format!(
                "order {order} and tile {tile} are out of range: tile must be 8 to {TILE_MAX}, \
                 and order a multiple of it up to {ORDER_MAX}"
            )))
        }
    }

    /// Counts the columns of tiles.
    fn columns(&self) -> usize {
        self.order / self.tile
    }

    /// Computes the byte offset of tile (`row`, `column`) of the lower half.
    fn offset(&self, row: usize, column: usize) -> u64 {
        let before = column * self.columns() - column * column.saturating_sub(1) / 2;
        ((before + row - column) * self.tile * self.tile * NUMBER) as u64
    }
}

/// Measurements of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SolverResult {
    /// Seconds to write the matrix to the file.
    pub assemble_secs: f64,
    /// Seconds to replace it by its factor.
    pub factor_secs: f64,
    /// Seconds to compute the solution.
    pub solve_secs: f64,
    /// Bytes read from and written to the file.
    pub bytes: u64,
    /// Multiply-add operations of the factorization.
    pub operations: u64,
}

/// Assembles, factors, solves and checks. The file is removed, even after a failure.
///
/// # Errors
/// [`Error::Spec`] for an invalid size, [`Error::Files`] for errors of the target,
/// [`Error::Verify`] for a wrong solution.
pub fn run(files: &dyn Files, config: &Config) -> Result<SolverResult> {
    config.check()?;
    let how = Open {
        write: true,
        ..Open::CREATE
    };
    let failed = |call, source| Error::on_files(files.name(), call, NAME, source);
    let file = files.open(NAME, how).map_err(|e| failed("open", e))?;
    let scratch = Scratch {
        files,
        file,
        config,
    };
    let solved = solve(&scratch);
    drop(scratch);
    let removed = files.unlink(NAME).map_err(|e| failed("unlink", e));
    let outcome = solved?;
    removed.map(|()| outcome)
}

fn solve(scratch: &Scratch<'_>) -> Result<SolverResult> {
    let config = scratch.config;
    let mut outcome = SolverResult::default();
    let clock = |began: Instant| began.elapsed().as_secs_f64();
    let began = Instant::now();
    let mut right = assemble(scratch, &mut outcome)?;
    outcome.assemble_secs = clock(began);
    let began = Instant::now();
    factor(scratch, &mut outcome)?;
    outcome.factor_secs = clock(began);
    let began = Instant::now();
    substitute(scratch, &mut right, &mut outcome)?;
    outcome.solve_secs = clock(began);
    let wrong = |x: &f64| x.is_nan() || (x - 1.0).abs() > TOLERANCE;
    match right.iter().position(wrong) {
        None => Ok(outcome),
        // The wrong unknown does not locate the corrupted byte; its column is the best
        // approximation.
        Some(row) => Err(Error::Verify {
            arm: scratch.files.name(),
            offset: config.offset(row / config.tile, row / config.tile),
        }),
    }
}

/// The scratch file that contains the factor.
struct Scratch<'a> {
    files: &'a dyn Files,
    file: Box<dyn OpenFile>,
    config: &'a Config,
}

impl Scratch<'_> {
    /// Reads the tiles of a column, from `row` to the last.
    fn read(&self, row: usize, column: usize, outcome: &mut SolverResult) -> Result<Vec<f64>> {
        let tiles = self.config.columns() - row;
        let mut bytes = vec![0; tiles * self.config.tile * self.config.tile * NUMBER];
        let at = self.config.offset(row, column);
        let mut done = 0;
        while done < bytes.len() {
            let read = self.file.read_at(at + done as u64, &mut bytes[done..]);
            match read.map_err(|e| self.failed("read", e))? {
                0 => return Err(self.failed("read", std::io::ErrorKind::UnexpectedEof.into())),
                n => done += n,
            }
        }
        outcome.bytes += bytes.len() as u64;
        let (numbers, _) = bytes.as_chunks::<NUMBER>();
        Ok(numbers.iter().map(|n| f64::from_le_bytes(*n)).collect())
    }

    fn write(&self, column: usize, numbers: &[f64], outcome: &mut SolverResult) -> Result<()> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        outcome.bytes += bytes.len() as u64;
        self.file
            .write_at(self.config.offset(column, column), &bytes)
            .map_err(|e| self.failed("write", e))
    }

    fn failed(&self, call: &'static str, source: std::io::Error) -> Error {
        Error::on_files(self.files.name(), call, NAME, source)
    }
}

/// Writes the matrix, column by column of tiles, and returns its product with a vector of ones.
fn assemble(scratch: &Scratch<'_>, outcome: &mut SolverResult) -> Result<Vec<f64>> {
    let config = scratch.config;
    let tile = config.tile;
    let mut right = vec![0.0; config.order];
    for column in 0..config.columns() {
        let mut numbers = vec![0.0; (config.columns() - column) * tile * tile];
        let mut rng = Rng::stream(config.seed, column as u64);
        for (n, number) in numbers.iter_mut().enumerate() {
            let (row, col) = place(n, tile, column);
            if row < col {
                continue;
            }
            // Diagonal elements exceed the sum of all others in the row, so the matrix is positive
            // definite.
            *number = if row == col {
                config.order as f64
            } else {
                (rng.next_u64() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
            };
            right[row] += *number;
            if row != col {
                right[col] += *number;
            }
        }
        scratch.write(column, &numbers, outcome)?;
    }
    Ok(right)
}

/// Computes the matrix row and column of the `n`th number in a column of tiles, which is stored
/// tile by tile, each in column-major order.
fn place(n: usize, tile: usize, column: usize) -> (usize, usize) {
    let (of_tile, inside) = (n / (tile * tile), n % (tile * tile));
    let row = (column + of_tile) * tile + inside % tile;
    (row, column * tile + inside / tile)
}

/// Left-looking Cholesky factorization: subtracts the contributions of all previous columns of
/// tiles, then factors the column.
fn factor(scratch: &Scratch<'_>, outcome: &mut SolverResult) -> Result<()> {
    let tile = scratch.config.tile;
    let area = tile * tile;
    for column in 0..scratch.config.columns() {
        let mut own = scratch.read(column, column, outcome)?;
        for before in 0..column {
            let other = scratch.read(column, before, outcome)?;
            let (across, _) = other.split_at(area);
            for (target, from) in own.chunks_mut(area).zip(other.chunks(area)) {
                subtract_product(target, from, across, tile);
                outcome.operations += (area * tile) as u64;
            }
        }
        let (diagonal, below) = own.split_at_mut(area);
        factor_tile(diagonal, tile);
        for other in below.chunks_mut(area) {
            divide_tile(other, diagonal, tile);
            outcome.operations += (area * tile / 2) as u64;
        }
        scratch.write(column, &own, outcome)?;
    }
    Ok(())
}

/// Computes `target -= from * across'` on column-major tiles.
fn subtract_product(target: &mut [f64], from: &[f64], across: &[f64], tile: usize) {
    for (c, out) in target.chunks_mut(tile).enumerate() {
        for (k, column) in from.chunks(tile).enumerate() {
            let by = across[k * tile + c];
            for (value, factor) in out.iter_mut().zip(column) {
                *value -= factor * by;
            }
        }
    }
}

/// Computes the factor of a diagonal tile in its lower half.
fn factor_tile(tile: &mut [f64], n: usize) {
    for j in 0..n {
        for k in 0..j {
            let by = tile[k * n + j];
            for i in j..n {
                tile[j * n + i] -= tile[k * n + i] * by;
            }
        }
        let root = tile[j * n + j].sqrt();
        tile[j * n + j..(j + 1) * n]
            .iter_mut()
            .for_each(|v| *v /= root);
    }
}

/// Computes `tile = tile * (diagonal')^-1`.
fn divide_tile(tile: &mut [f64], diagonal: &[f64], n: usize) {
    for j in 0..n {
        let (done, rest) = tile.split_at_mut(j * n);
        let own = &mut rest[..n];
        for (k, column) in done.chunks(n).enumerate() {
            let by = diagonal[k * n + j];
            for (value, factor) in own.iter_mut().zip(column) {
                *value -= factor * by;
            }
        }
        let root = diagonal[j * n + j];
        own.iter_mut().for_each(|v| *v /= root);
    }
}

/// Solves in place by forward and backward substitution.
fn substitute(scratch: &Scratch<'_>, x: &mut [f64], outcome: &mut SolverResult) -> Result<()> {
    let tile = scratch.config.tile;
    let forth = 0..scratch.config.columns();
    for column in forth.clone() {
        let numbers = scratch.read(column, column, outcome)?;
        for col in 0..tile {
            let of = |row: usize| element(&numbers, row, col, tile);
            let first = column * tile + col;
            x[first] /= of(col);
            let value = x[first];
            for row in col + 1..numbers.len() / tile {
                x[column * tile + row] -= of(row) * value;
            }
        }
    }
    for column in forth.rev() {
        let numbers = scratch.read(column, column, outcome)?;
        for col in (0..tile).rev() {
            let of = |row: usize| element(&numbers, row, col, tile);
            let below = col + 1..numbers.len() / tile;
            let sum: f64 = below.map(|row| of(row) * x[column * tile + row]).sum();
            let own = column * tile + col;
            x[own] = (x[own] - sum) / of(col);
        }
    }
    Ok(())
}

/// Returns a number of a column of tiles; `row` counts from the first row of the column.
fn element(numbers: &[f64], row: usize, col: usize, tile: usize) -> f64 {
    numbers[row / tile * tile * tile + col * tile + row % tile]
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_core::files::HostDirectory;

    fn solved(order: usize, tile: usize) -> Result<SolverResult> {
        let dir = tempfile::tempdir().unwrap();
        let files = HostDirectory::open(dir.path()).unwrap();
        let config = Config {
            order,
            tile,
            ..Config::default()
        };
        let outcome = run(&files, &config);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        outcome
    }

    #[test]
    fn the_solution_is_right_and_the_bytes_are_those_of_a_hand_calculation() {
        for (order, tile) in [(8, 8), (64, 16), (192, 32)] {
            let outcome = solved(order, tile).unwrap();
            let b = (order / tile) as u64;
            // Each column is written by assembly and factorization, read by factorization and by
            // both substitutions, and read once for each later column.
            let own: u64 = (0..b).map(|c| b - c).sum();
            let others: u64 = (0..b).map(|c| c * (b - c)).sum();
            let tiles = 5 * own + others;
            assert_eq!(outcome.bytes, tiles * (tile * tile * NUMBER) as u64);
        }
        assert!(matches!(solved(100, 64), Err(Error::Spec(_))));
    }

    #[test]
    fn a_number_that_changes_in_the_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let files = HostDirectory::open(dir.path()).unwrap();
        let config = Config {
            order: 64,
            tile: 16,
            seed: 7,
        };
        let file = files.open(NAME, Open::CREATE).unwrap();
        let scratch = Scratch {
            files: &files,
            file,
            config: &config,
        };
        let mut outcome = SolverResult::default();
        let mut right = assemble(&scratch, &mut outcome).unwrap();
        let mut numbers = scratch.read(1, 1, &mut outcome).unwrap();
        numbers[300] += 0.5;
        scratch.write(1, &numbers, &mut outcome).unwrap();
        factor(&scratch, &mut outcome).unwrap();
        substitute(&scratch, &mut right, &mut outcome).unwrap();
        assert!(right.iter().any(|x| (x - 1.0).abs() > TOLERANCE));
    }
}
