//! The bugs of the controls.

/// A bug that is planted in a copy of the engine, behind a switch.
#[derive(Debug, Clone, Copy)]
pub struct Plant {
    /// Its name, by which the switch is set.
    pub name: &'static str,
    /// The file, below the engine's sources.
    pub file: &'static str,
    /// What stands there in the product, once.
    pub product: &'static str,
    /// What stands there with the bug.
    pub bug: &'static str,
}

/// All of them.
pub const PLANTS: &[Plant] = &[
    Plant {
        name: "check-before-the-lock-is-kept",
        file: "memory/gate.rs",
        product: "            let (Some(id), Some(slot)) = (found, slot) else {
                return Err((FenceRejection::NotHeld, current));
            };
            if let Some(cell)",
        bug: "            if stand_in::bugs::planted(\"check-before-the-lock-is-kept\") {
                let Some(id) = found else { continue };
                drop(rows);
                rows = self.lock();
                let closed = rows.slots.get_mut(id).and_then(|slot| slot.close_gate(id, &self.board));
                let Some(cell) = closed else { continue };
                GATES_HELD.with(|held| held.set(held.get() + 1));
                return Ok(Gate { shard: self, id, cell });
            }
            let (Some(id), Some(slot)) = (found, slot) else {
                return Err((FenceRejection::NotHeld, current));
            };
            if let Some(cell)",
    },
    Plant {
        name: "gate-opened-without-a-word",
        file: "memory/gate.rs",
        product: "        if is_contended {",
        bug: "        if is_contended && !stand_in::bugs::planted(\"gate-opened-without-a-word\") {",
    },
    Plant {
        name: "gate-waited-for-without-a-note",
        file: "memory/board.rs",
        product: "            let noted =
                cell",
        bug: "            if stand_in::bugs::planted(\"gate-waited-for-without-a-note\") {
                return cell.load(Ordering::Acquire) & !CONTENDED == alone;
            }
            let noted =
                cell",
    },
    Plant {
        name: "waits-after-the-lock-is-given-back",
        file: "memory/gate.rs",
        product: "                    Err(Gated::Wait) => self.gate_opened_async.notified(),",
        bug: "                    Err(Gated::Wait) => {
                        if stand_in::bugs::planted(\"waits-after-the-lock-is-given-back\") {
                            drop(rows);
                        }
                        self.gate_opened_async.notified()
                    }",
    },
    Plant {
        name: "gate-closed-twice",
        file: "memory/board.rs",
        product: "                other if other & !CONTENDED == closed(id) => return Closing::IsClosed,",
        bug: "                other if other & !CONTENDED == closed(id) => {
                    return match stand_in::bugs::planted(\"gate-closed-twice\") {
                        // Only the one who waits is looked for.
                        true if other & CONTENDED == 0 => Closing::NoPlace,
                        _ => Closing::IsClosed,
                    };
                }",
    },
];
