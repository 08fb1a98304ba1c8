//! `evfs lun advise`, in the process that has the LUN open.

use bench_advice::advise;
use multipath::trace::Recording;
use stack::lun::Advice;

/// Replays the recorded I/O through every policy.
///
/// # Errors
/// Too little I/O was recorded; the text names the required number.
pub fn lun_advice(recording: &Recording) -> Result<Advice, String> {
    let Recording {
        trace,
        views,
        policy,
        node,
    } = recording;
    let advice = advise(trace, views, *policy, *node).map_err(|e| e.to_string())?;
    Ok(Advice {
        text: advice.to_string(),
        recommended: advice.recommended().name().to_owned(),
    })
}
