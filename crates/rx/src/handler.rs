//! The handlers of services.

use crate::call::Call;
use crate::error::Abort;

/// Handler of the calls of a service.
pub trait Handler: Send + Sync {
    /// Serves one call: reads the request, writes the reply. Returning ends the call: `Ok` delivers
    /// the written data, an [`Abort`] sends its code to the client. May block; may make calls
    /// itself.
    fn serve(&self, call: &mut Call) -> Result<(), Abort>;
}

impl<F: Fn(&mut Call) -> Result<(), Abort> + Send + Sync> Handler for F {
    fn serve(&self, call: &mut Call) -> Result<(), Abort> {
        self(call)
    }
}
