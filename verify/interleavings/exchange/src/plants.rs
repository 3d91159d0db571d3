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
        name: "check-from-before-the-wait",
        file: "memory/gate.rs",
        product: "                        .wait(rows)
                        .unwrap_or_else(PoisonError::into_inner);",
        bug: "                        .wait(rows)
                        .unwrap_or_else(PoisonError::into_inner);
                    if stand_in::bugs::planted(\"check-from-before-the-wait\") {
                        let slot = rows.slots.get_mut(id);
                        if let Some(cell) = slot.and_then(|slot| slot.close_gate(id, &self.board)) {
                            GATES_HELD.with(|held| held.set(held.get() + 1));
                            return Ok(Gate { shard: self, id, cell });
                        }
                    }",
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
    Plant {
        name: "handed-over-without-a-ring",
        file: "memory/hand_over.rs",
        product: "            first.seat.tell(told);
            after.rings.push(first.seat);",
        bug: "            first.seat.tell(told);
            if !stand_in::bugs::planted(\"handed-over-without-a-ring\") {
                after.rings.push(first.seat);
            }",
    },
    Plant {
        name: "grant-kept-by-one-who-left",
        file: "memory/hand_over.rs",
        product: "        if let Some(Told::Granted(fence)) = seat.told() {
            self.give_back(",
        bug: "        if let Some(Told::Granted(fence)) = seat.told()
            && !stand_in::bugs::planted(\"grant-kept-by-one-who-left\")
        {
            self.give_back(",
    },
    Plant {
        name: "cancelled-after-the-hand-over",
        file: "memory/hand_over.rs",
        product: "        let withdrawn = slot.rare_mut().queue.withdraw(candidate, grant_id);",
        bug: "        if stand_in::bugs::planted(\"cancelled-after-the-hand-over\") {
            return;
        }
        let withdrawn = slot.rare_mut().queue.withdraw(candidate, grant_id);",
    },
    Plant {
        name: "next-is-not-told-that-it-is-first",
        file: "memory/hand_over.rs",
        product: "        let was_first = rare.queue.leave(ticket, seat);
        slot.tidy();
        if was_first {",
        bug: "        let was_first = rare.queue.leave(ticket, seat);
        slot.tidy();
        if was_first && !stand_in::bugs::planted(\"next-is-not-told-that-it-is-first\") {",
    },
    Plant {
        name: "opening-rings-no-seat",
        file: "memory/gate.rs",
        product: "        for seat in seats.into_iter().flatten() {
            seat.ring();",
        bug: "        for seat in seats.into_iter().flatten() {
            if stand_in::bugs::planted(\"opening-rings-no-seat\") {
                break;
            }
            seat.ring();",
    },
    Plant {
        name: "restart-rings-nobody",
        file: "memory/queue.rs",
        product: "            waiting.seat.tell(Told::Restarted);
            rings.push(waiting.seat);",
        bug: "            waiting.seat.tell(Told::Restarted);
            if !stand_in::bugs::planted(\"restart-rings-nobody\") {
                rings.push(waiting.seat);
            }",
    },
    Plant {
        name: "replaced-without-a-word",
        file: "memory/queue.rs",
        product: "            older.tell(Told::Replaced);",
        bug: "            if !stand_in::bugs::planted(\"replaced-without-a-word\") {
                older.tell(Told::Replaced);
            }",
    },
    Plant {
        name: "place-taken-twice",
        file: "memory/queue.rs",
        product: "        let known = self.tickets.get(&wish).copied();",
        bug: "        let known = self.tickets.get(&wish).copied();
        let known = known.filter(|_| !stand_in::bugs::planted(\"place-taken-twice\"));",
    },
    Plant {
        name: "closure-forgotten-at-the-hand-over",
        file: "memory/hand_over.rs",
        product: "            let Some(slot) = self.ungated(id)? else {
                return Ok(());
            };
            let resource",
        bug: "            let slot = match stand_in::bugs::planted(\"closure-forgotten-at-the-hand-over\") {
                true => self.slots.get_mut(id),
                false => self.ungated(id)?,
            };
            let Some(slot) = slot else {
                return Ok(());
            };
            let resource",
    },
    Plant {
        name: "floor-forgotten",
        file: "memory/rows.rs",
        product: "        self.floor = floor_behind(self.floor, slot.row.epoch);",
        bug: "        if !stand_in::bugs::planted(\"floor-forgotten\") {
            self.floor = floor_behind(self.floor, slot.row.epoch);
        }",
    },
    Plant {
        name: "held-row-dropped",
        file: "memory/idle.rs",
        product: "            let kept = slot.row.held.is_some()",
        bug: "            let kept = slot.row.held.is_some()
                && !stand_in::bugs::planted(\"held-row-dropped\")",
    },
    Plant {
        name: "change-marked-as-seen",
        file: "watching.rs",
        product: "            self.receiver.changed().await.ok()?;",
        bug: "            if stand_in::bugs::planted(\"change-marked-as-seen\") {
                self.receiver.mark_unchanged();
            }
            self.receiver.changed().await.ok()?;",
    },
    Plant {
        name: "watch-ended-before-its-reason",
        file: "watching.rs",
        product: "        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        *failure = Some(error);",
        bug: "        let WatchSender { sender, failure } = self;
        let later = match stand_in::bugs::planted(\"watch-ended-before-its-reason\") {
            true => {
                drop(sender);
                None
            }
            false => Some(sender),
        };
        let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
        *failure = Some(error);
        drop(failure);
        drop(later);",
    },
    Plant {
        name: "register-written-under-a-closure",
        file: "memory/registers.rs",
        product: "        let Some(slot) = rows.ungated(id)? else {",
        bug: "        let slot = match stand_in::bugs::planted(\"register-written-under-a-closure\") {
            true => rows.slots.get_mut(id),
            false => rows.ungated(id)?,
        };
        let Some(slot) = slot else {",
    },
    Plant {
        name: "value-kept-without-its-release",
        file: "memory/registers.rs",
        product: "            && let Err(answer) = self.release(rows, op, after)?",
        bug: "            && !stand_in::bugs::planted(\"value-kept-without-its-release\")
            && let Err(answer) = self.release(rows, op, after)?",
    },
    Plant {
        name: "task-ends-after-the-lock",
        file: "handle/schedule/task.rs",
        product: "    if is_last {
        state.running = false;
    }
    drop(state);",
        bug: "    let late = stand_in::bugs::planted(\"task-ends-after-the-lock\");
    if is_last && !late {
        state.running = false;
    }
    drop(state);
    if is_last && late {
        schedule.lock().running = false;
    }",
    },
    Plant {
        name: "answer-for-whoever-sits-there",
        file: "handle/schedule/table.rs",
        product: "            if entry.phase != Phase::Sent(id) {
                continue;",
        bug: "            if entry.phase != Phase::Sent(id)
                && !stand_in::bugs::planted(\"answer-for-whoever-sits-there\")
            {
                continue;",
    },
    Plant {
        name: "schedule-forgets-another",
        file: "handle/schedule/registry.rs",
        product: "        && std::ptr::eq(entry.as_ptr(), schedule)
    {",
        bug: "        && (std::ptr::eq(entry.as_ptr(), schedule)
            || stand_in::bugs::planted(\"schedule-forgets-another\"))
    {",
    },
    Plant {
        name: "join-wakes-nobody",
        file: "handle/schedule/mod.rs",
        product: "        } else if too_late {",
        bug: "        } else if too_late && !stand_in::bugs::planted(\"join-wakes-nobody\") {",
    },
    Plant {
        name: "stranded-without-a-word",
        file: "handle/schedule/task.rs",
        product: "        for lease in stranded {",
        bug: "        for lease in stranded {
            if stand_in::bugs::planted(\"stranded-without-a-word\") {
                break;
            }",
    },
    Plant {
        name: "release-ends-later",
        file: "handle/mod.rs",
        product: "        self.end(EndedReason::Released);
        let span = tracing::debug_span!(\"release\",",
        bug: "        if !stand_in::bugs::planted(\"release-ends-later\") {
            self.end(EndedReason::Released);
        }
        let span = tracing::debug_span!(\"release\",",
    },
    Plant {
        name: "over-before-it-was-asked",
        file: "handle/release.rs",
        product: "    attempts.wait_for_guards().await?;
    let op = LeaseOp::Release {",
        bug: "    attempts.wait_for_guards().await?;
    if stand_in::bugs::planted(\"over-before-it-was-asked\") {
        shared.set_epoch_over();
    }
    let op = LeaseOp::Release {",
    },
    Plant {
        name: "end-looked-at-before-the-lock",
        file: "handle/state.rs",
        product: "        let state = self.lock();
        if state.ended.is_none() {
            self.end_locked(state, reason);",
        bug: "        let mut state = self.lock();
        if state.ended.is_none() {
            if stand_in::bugs::planted(\"end-looked-at-before-the-lock\") {
                drop(state);
                state = self.lock();
            }
            self.end_locked(state, reason);",
    },
    Plant {
        name: "told-before-it-has-ended",
        file: "handle/state.rs",
        product: "        state.ended = Some(reason);
        drop(state);",
        bug: "        if stand_in::bugs::planted(\"told-before-it-has-ended\") {
            drop(state);
            self.status.send_replace(status_of(reason));
            self.lock().ended = Some(reason);
            return;
        }
        state.ended = Some(reason);
        drop(state);",
    },
    Plant {
        name: "late-renewal-revives",
        file: "handle/state.rs",
        product: "        if left.is_none() && state.ended.is_none() {",
        bug: "        if left.is_none()
            && state.ended.is_none()
            && !stand_in::bugs::planted(\"late-renewal-revives\")
        {",
    },
    Plant {
        name: "guard-looks-before-it-is-busy",
        file: "handle/guard.rs",
        product: "        let _busy = shared.guards.enter(&mut this.is_known);
        let ended = shared.ended();",
        bug: "        let early = stand_in::bugs::planted(\"guard-looks-before-it-is-busy\");
        let early = early.then(|| shared.ended());
        let _busy = shared.guards.enter(&mut this.is_known);
        let ended = early.unwrap_or_else(|| shared.ended());",
    },
    Plant {
        name: "guard-waits-to-be-told",
        file: "handle/guard.rs",
        product: "            Some(reason) => Poll::Ready(reason),
            None =>",
        bug: "            Some(reason) if !stand_in::bugs::planted(\"guard-waits-to-be-told\") => {
                Poll::Ready(reason)
            }
            _ =>",
    },
    Plant {
        name: "guards-counted-before-listening",
        file: "handle/guard.rs",
        product: "            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let Counts { alive, busy } = *self.lock();",
        bug: "            let early = stand_in::bugs::planted(\"guards-counted-before-listening\");
            let early = early.then(|| *self.lock());
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let Counts { alive, busy } = early.unwrap_or_else(|| *self.lock());",
    },
    Plant {
        name: "acquire-not-undone",
        file: "handle/wish.rs",
        product: "        if self.armed {",
        bug: "        if self.armed && !stand_in::bugs::planted(\"acquire-not-undone\") {",
    },
    Plant {
        name: "counted-from-the-answer",
        file: "handle/schedule/flight.rs",
        product: "            match lease.renewed_at(sent, now) {",
        bug: "            let sent = match stand_in::bugs::planted(\"counted-from-the-answer\") {
                true => now,
                false => sent,
            };
            match lease.renewed_at(sent, now) {",
    },
    Plant {
        name: "grant-counted-from-the-answer",
        file: "handle/acquire.rs",
        product: "                    if let Some(handle) = wish.handle(fence, sent, &self.runtime) {",
        bug: "                    let sent = match stand_in::bugs::planted(\"grant-counted-from-the-answer\") {
                        true => parts.clock.now(),
                        false => sent,
                    };
                    if let Some(handle) = wish.handle(fence, sent, &self.runtime) {",
    },
    Plant {
        name: "leaves-for-another",
        file: "handle/schedule/table.rs",
        product: "        match Arc::ptr_eq(&entry.shared, shared) {
            true =>",
        bug: "        match Arc::ptr_eq(&entry.shared, shared)
            || stand_in::bugs::planted(\"leaves-for-another\")
        {
            true =>",
    },
    Plant {
        name: "audited-after-the-lock",
        file: "memory/serializer.rs",
        product: "                let outcome = rows.transition(&self.terms(), key, &op, &mut after);
                self.note(&mut after);
                outcome
            })
            .await;",
        bug: "                let outcome = rows.transition(&self.terms(), key, &op, &mut after);
                if !stand_in::bugs::planted(\"audited-after-the-lock\") {
                    self.note(&mut after);
                }
                outcome
            })
            .await;
        self.note(&mut after);",
    },
    Plant {
        name: "guard-is-not-told",
        file: "handle/state.rs",
        product: "        let status = status_of(reason);
        tracing::debug!",
        bug: "        let status = status_of(reason);
        if stand_in::bugs::planted(\"guard-is-not-told\") && reason != EndedReason::Released {
            return;
        }
        tracing::debug!",
    },
];
