//! Errors of benchmarks as errors of the program.

use stack::Error;

/// Converts an error of a benchmark, with its causes, to one of the program.
pub fn program_error(error: bench_core::Error) -> Error {
    let text = error.in_words();
    match error {
        bench_core::Error::Spec(_) => Error::Usage(text),
        bench_core::Error::Journal { source, .. }
            if source.kind() == std::io::ErrorKind::ResourceBusy =>
        {
            Error::Busy(text)
        }
        bench_core::Error::Journal { source, .. }
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            Error::NotFound(text)
        }
        _ => Error::Failed(text),
    }
}
