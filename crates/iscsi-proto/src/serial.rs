//! 32-bit serial number arithmetic (RFC 1982 and section 4.2.2.1).

/// Checks whether `a` precedes `b`.
pub(crate) fn before(a: u32, b: u32) -> bool {
    a != b && b.wrapping_sub(a) < 1 << 31
}

/// Command window granted by the target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    exp_cmd_sn: u32,
    max_cmd_sn: u32,
}

impl Window {
    pub(crate) fn new(exp_cmd_sn: u32, max_cmd_sn: u32) -> Window {
        Window {
            exp_cmd_sn,
            max_cmd_sn,
        }
    }

    /// Applies `ExpCmdSN` and `MaxCmdSN` of a PDU. Stale and invalid values are ignored.
    pub(crate) fn update(&mut self, exp_cmd_sn: u32, max_cmd_sn: u32) {
        if before(max_cmd_sn, exp_cmd_sn.wrapping_sub(1)) {
            return;
        }
        if before(self.exp_cmd_sn, exp_cmd_sn) {
            self.exp_cmd_sn = exp_cmd_sn;
        }
        if before(self.max_cmd_sn, max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
    }

    /// Checks whether a command with this number may be sent.
    pub(crate) fn allows(&self, cmd_sn: u32) -> bool {
        !before(self.max_cmd_sn, cmd_sn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_holds_around_zero() {
        assert!(before(1, 2) && !before(2, 1) && !before(2, 2));
        assert!(before(u32::MAX, 0) && !before(0, u32::MAX));
    }

    #[test]
    fn the_window_moves_forward_only() {
        let mut window = Window::new(10, 12);
        assert!(window.allows(12) && !window.allows(13));
        window.update(9, 11);
        assert!(window.allows(12) && !window.allows(13));
        window.update(11, 20);
        assert!(window.allows(20) && !window.allows(21));
        // MaxCmdSN below ExpCmdSN - 1 is invalid; equal to it closes the window.
        window.update(40, 30);
        assert!(window.allows(20) && !window.allows(21));
        let mut wrap = Window::new(u32::MAX, u32::MAX);
        assert!(!wrap.allows(0));
        wrap.update(0, 3);
        assert!(wrap.allows(0) && wrap.allows(3) && !wrap.allows(4));
    }
}
