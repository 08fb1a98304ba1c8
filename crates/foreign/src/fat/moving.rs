//! Moves of entries: renamed files.

use super::Fat;
use super::directory::{Named, UNUSED, entries_at};
use super::writable::State;
use crate::disk::Disk;
use crate::error::{Kind, Result};

impl State {
    /// Moves the entry of a file to a name in `dir`, with these entries but for the attributes.
    /// Returns the new place of the short one.
    ///
    /// One write of a sector does it if the new entries have room in the sector of the old one.
    /// Otherwise the old entries stay on the device until the new ones are there, and so do those of
    /// a replaced file: at any time, each of the two has a name.
    pub(super) fn move_entries(
        &mut self,
        fat: &Fat,
        disk: &mut Disk,
        source: &Named,
        target: Option<&Named>,
        dir: u64,
        mut entries: Vec<[u8; 32]>,
    ) -> Result<u64> {
        let unit = disk.unit();
        let is_near = |place: &u64| place / unit == source.place / unit;
        let count = entries.len();
        let old = source.places();
        let replaced = target.map(Named::places).unwrap_or_default();
        let own = &old[old.len().saturating_sub(count)..];
        let fits = source.dir == dir && own.len() == count && own.iter().all(is_near);
        let places = match target {
            Some(target) if is_near(&target.place) => replaced.clone(),
            _ if fits => own.to_vec(),
            _ => match self.room(fat, disk, dir, count, Some(source.place)) {
                Err(error) if error.kind() == Kind::NoSpace && target.is_some() => replaced.clone(),
                places => places?,
            },
        };
        let place = places[count - 1];
        let in_place = places == replaced;
        // Without room for one entry more, the replaced file keeps its name until the old name is
        // gone.
        let is_full = in_place && !is_near(&place);
        let at_once = is_near(&place) && (in_place || places.iter().all(is_near));
        let kept = |place: &&u64| !places.contains(place);
        let late = |place: &&u64| !is_full && kept(place) && !(at_once && is_near(place));
        let keep_moved: Vec<u64> = old.iter().copied().filter(|place| late(&place)).collect();
        let keep_replaced = replaced.iter().copied();
        let keep_replaced: Vec<u64> = keep_replaced.filter(|at| is_full || kept(&at)).collect();
        let all = old.iter().chain(&replaced).chain(&places);
        if self.pending.keeps(all) {
            // An entry moves once in a commit.
            self.commit(fat, disk)?;
        }
        for (place, raw) in keep_moved.iter().zip(entries_at(disk, &keep_moved)?) {
            self.pending.keep_moved(*place, raw);
        }
        for (place, raw) in keep_replaced.iter().zip(entries_at(disk, &keep_replaced)?) {
            self.pending.keep_replaced(*place, raw);
        }
        for place in old.iter().chain(&replaced).filter(kept) {
            self.pending.set_entry(disk, *place, &[UNUSED])?;
        }
        if let Some(raw) = entries.last_mut() {
            let (short, case) = (raw[..11].to_vec(), raw[12]);
            *raw = source.raw;
            raw[..11].copy_from_slice(&short);
            raw[12] = case;
        }
        for (place, raw) in places.iter().zip(&entries) {
            self.pending.set_entry(disk, *place, raw)?;
        }
        Ok(place)
    }
}
