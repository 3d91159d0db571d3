//! What must be found after a death, by what everybody was told before it. It knows nothing of the code.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::rules::{Broken, Rule};
use crate::volume::Event;
use crate::words::{Line, Value, Wish, Word};

/// All that was told up to some moment.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Expected {
    rows: BTreeMap<String, Row>,
    /// What was asked and not yet answered, by caller.
    asked: HashMap<String, Wish>,
    /// What was asked and failed: it may show up after a death, or never.
    failed: Vec<Wish>,
    mutated: BTreeMap<u64, (String, u64)>,
    held_off: BTreeMap<String, (u64, String)>,
    acknowledged: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Row {
    /// It is at least at this epoch…
    epoch: u64,
    /// …and if it is at this one, it is held or free.
    held: bool,
    holder: Option<String>,
    grants: Vec<(u64, String)>,
    ends: Vec<u64>,
    value: Option<(u64, Value)>,
    revision_seen: u64,
}

/// What is found in a store.
#[derive(Debug, Default)]
pub struct Found {
    /// By resource.
    pub rows: BTreeMap<String, FoundRow>,
    /// The epoch at which a name without a row is free.
    pub floor: u64,
    /// Revision, epoch and value, by resource.
    pub values: BTreeMap<String, (u64, u64, Vec<u8>)>,
    /// The audit trail, the oldest first.
    pub audit: Vec<FoundRecord>,
    /// The user's table: number, resource and epoch, in the order in which they were written.
    pub numbers: Vec<(u64, String, u64)>,
    /// The user's other table.
    pub numbers_too: BTreeSet<u64>,
    /// What SQLite says about the file.
    pub integrity: String,
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundRow {
    /// Its epoch.
    pub epoch: u64,
    /// Who holds it.
    pub holder: Option<String>,
}

/// A record of an ownership change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundRecord {
    /// Its number.
    pub id: u64,
    /// The name of the event.
    pub event: &'static str,
    /// Of which resource.
    pub resource: Option<String>,
    /// The epoch that it ended.
    pub carried: Option<u64>,
    /// The epoch afterwards.
    pub current: u64,
    /// The holder.
    pub holder: Option<String>,
}

impl Expected {
    /// What the lines in `events` say.
    #[must_use]
    pub fn of<'e>(events: impl IntoIterator<Item = &'e Event>) -> Self {
        let mut expected = Self::default();
        for event in events {
            expected.hear(event);
        }
        expected
    }

    /// One event more.
    pub fn hear(&mut self, event: &Event) {
        if let Event::Told(text) = event
            && let Some(line) = Line::parse(text)
        {
            self.hear_line(line);
        }
    }

    /// How much was acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// What was asked and not answered, so that it can be asked again.
    pub fn unanswered(&self) -> impl Iterator<Item = &Wish> {
        self.asked.values()
    }

    /// Resources, and the highest epoch that was ever told or seen of each.
    pub fn epochs(&self) -> impl Iterator<Item = (&str, u64)> {
        self.rows
            .iter()
            .map(|(resource, row)| (resource.as_str(), row.epoch))
    }

    /// A grant that was told, whether it has ended since or not.
    #[must_use]
    pub fn some_grant(&self, resource: &str) -> Option<(u64, &str)> {
        let (epoch, holder) = self.rows.get(resource)?.grants.first()?;
        Some((*epoch, holder))
    }

    /// Who must not get a resource: resource, and who.
    pub fn held_off(&self) -> impl Iterator<Item = (&str, &str)> {
        self.held_off
            .iter()
            .map(|(resource, (_, holder))| (resource.as_str(), holder.as_str()))
    }

    /// Those who asked are dead, and this is what became of their wishes: from now on it has to stay.
    #[must_use]
    pub fn settled(mut self, found: &Found) -> Self {
        self.asked.clear();
        self.failed.clear();
        for (resource, now) in &found.rows {
            let row = self.rows.entry(resource.clone()).or_default();
            (row.epoch, row.held) = (now.epoch, now.holder.is_some());
            row.holder.clone_from(&now.holder);
        }
        for (resource, (revision, _, bytes)) in &found.values {
            let row = self.rows.entry(resource.clone()).or_default();
            let text = String::from_utf8_lossy(bytes);
            let name = text.trim_end_matches('.').to_owned();
            let padding = bytes.len() - name.len();
            row.revision_seen = *revision;
            row.value = Some((*revision, Value { name, padding }));
        }
        for (number, resource, epoch) in &found.numbers {
            self.mutated.insert(*number, (resource.clone(), *epoch));
        }
        self
    }

    pub(crate) fn hear_line(&mut self, Line { caller, word }: Line) {
        let asked = match word {
            Word::Saw { .. }
            | Word::SawValue { .. }
            | Word::Opened
            | Word::Looked
            | Word::NotOpened(_)
            | Word::Done => None,
            _ => self.asked.remove(&caller),
        };
        self.acknowledged += u64::from(!matches!(
            word,
            Word::Asks(_)
                | Word::Saw { .. }
                | Word::SawValue { .. }
                | Word::Denied
                | Word::Failed(_)
                | Word::Opened
                | Word::Looked
                | Word::NotOpened(_)
                | Word::Done
        ));
        match word {
            Word::Asks(wish) => {
                self.asked.insert(caller, wish);
            }
            Word::Failed(_) => self.failed.extend(asked),
            Word::Granted {
                resource,
                epoch,
                holder,
            } => {
                let row = self.rows.entry(resource).or_default();
                row.grants.push((epoch, holder.clone()));
                row.is_at(epoch, true);
                if row.epoch == epoch {
                    row.holder = Some(holder);
                }
            }
            Word::Ended { resource, epoch } => self.ended(resource, epoch),
            Word::HeldOff {
                resource,
                epoch,
                holder,
            } => {
                self.held_off.insert(resource.clone(), (epoch, holder));
                self.ended(resource, epoch);
            }
            Word::Wrote {
                resource,
                value_revision,
                value,
                ..
            } => self.wrote(resource, value_revision, value),
            Word::WroteAndEnded {
                resource,
                epoch,
                value_revision,
                value,
            } => {
                self.wrote(resource.clone(), value_revision, value);
                self.ended(resource, epoch);
            }
            Word::Mutated {
                resource,
                epoch,
                number,
            } => {
                self.mutated.insert(number, (resource, epoch));
            }
            Word::Saw {
                resource,
                epoch,
                held,
            } => self.rows.entry(resource).or_default().is_at(epoch, held),
            Word::SawValue {
                resource,
                value_revision,
            } => {
                let row = self.rows.entry(resource).or_default();
                row.revision_seen = row.revision_seen.max(value_revision);
            }
            Word::Denied | Word::Opened | Word::Looked | Word::NotOpened(_) | Word::Done => {}
        }
    }

    fn ended(&mut self, resource: String, epoch: u64) {
        let row = self.rows.entry(resource).or_default();
        row.ends.push(epoch);
        row.is_at(epoch + 1, false);
    }

    fn wrote(&mut self, resource: String, value_revision: u64, value: Value) {
        let row = self.rows.entry(resource).or_default();
        row.revision_seen = row.revision_seen.max(value_revision);
        if row
            .value
            .as_ref()
            .is_none_or(|(known, _)| *known < value_revision)
        {
            row.value = Some((value_revision, value));
        }
    }

    fn doubts(&self) -> impl Iterator<Item = &Wish> {
        self.asked.values().chain(&self.failed)
    }

    /// Compares what is found with what was told.
    ///
    /// # Errors
    ///
    /// The first rule that is broken, and what was seen.
    pub fn check(&self, found: &Found) -> Result<(), Broken> {
        if found.integrity != "ok" {
            let damaged = format!("the file is damaged: {}", found.integrity);
            return Err(Rule::Sound.broken(damaged));
        }
        for (resource, row) in &self.rows {
            self.check_row(resource, row, found)
                .and_then(|()| self.check_value(resource, row, found))
                .map_err(|broken| broken.seen(resource))?;
        }
        self.check_both_or_neither(found)?;
        self.check_numbers(found)?;
        self.check_audit(found)
    }

    fn check_row(&self, resource: &str, row: &Row, found: &Found) -> Result<(), Broken> {
        let absent = FoundRow {
            epoch: found.floor,
            holder: None,
        };
        let now = found.rows.get(resource).unwrap_or(&absent);
        let seen = format!("{now:?}, floor {}", found.floor);
        if now.epoch < row.epoch {
            // The trail may know of it; then the change was kept, and only its epoch is free to be used again.
            let is_known = |record: &FoundRecord| {
                record.resource.as_deref() == Some(resource) && record.current >= row.epoch
            };
            let rule = match found.audit.iter().any(is_known) {
                true => Rule::Epochs,
                false => Rule::Durable,
            };
            return Err(rule.broken(format!("epoch {} was told or seen: {seen}", row.epoch)));
        }
        if now.epoch == row.epoch && row.epoch > 0 && now.holder.is_some() != row.held {
            let held = if row.held { "held" } else { "free" };
            return Err(Rule::Durable.broken(format!("{held} at epoch {}: {seen}", row.epoch)));
        }
        if now.epoch == row.epoch && row.holder.is_some() && now.holder != row.holder {
            return Err(Rule::Durable.broken(format!(
                "held by {:?} at epoch {}: {seen}",
                row.holder, row.epoch
            )));
        }
        let mut doubts = self.doubts();
        let is_certain =
            !doubts.any(|wish| wish.resource() == resource && wish.is_about_ownership());
        if is_certain && row.held && (now.epoch, &now.holder) != (row.epoch, &row.holder) {
            return Err(Rule::Durable.broken(format!(
                "held by {:?} at epoch {}, and nobody asked for more: {seen}",
                row.holder, row.epoch
            )));
        }
        if is_certain && now.holder.is_some() && !row.held {
            return Err(Rule::Durable.broken(format!("free, and nobody asked for it: {seen}")));
        }
        Ok(())
    }

    fn check_value(&self, resource: &str, row: &Row, found: &Found) -> Result<(), Broken> {
        let now = found.values.get(resource);
        let revision = now.map_or(0, |(revision, _, _)| *revision);
        let seen = || {
            now.map(|(revision, epoch, value)| {
                let name: String = String::from_utf8_lossy(value).chars().take(40).collect();
                format!("revision {revision} of epoch {epoch}: {name}")
            })
        };
        if revision < row.revision_seen {
            return Err(Rule::Durable.broken(format!(
                "value revision {} was told or seen: {:?}",
                row.revision_seen,
                seen()
            )));
        }
        let Some((_, _, bytes)) = now else {
            return Ok(());
        };
        let is_told = row
            .value
            .as_ref()
            .is_some_and(|(at, value)| *at == revision && value.bytes() == *bytes);
        let mut doubts = self.doubts();
        let is_asked = doubts.any(|wish| {
            wish.resource() == resource && wish.value().is_some_and(|value| value.bytes() == *bytes)
        });
        let is_later = row.value.as_ref().is_none_or(|(at, _)| *at < revision);
        if is_told || (is_asked && is_later) {
            return Ok(());
        }
        // The value without its revision, or the revision without its value.
        let is_known = row.value.as_ref().is_some_and(|v| v.1.bytes() == *bytes);
        let rule = match is_asked || is_known {
            true => Rule::Whole,
            false => Rule::Durable,
        };
        Err(rule.broken(format!("another value than {:?}: {:?}", row.value, seen())))
    }

    /// A register write that releases has done both or neither.
    fn check_both_or_neither(&self, found: &Found) -> Result<(), Broken> {
        for wish in self.doubts() {
            let Wish::WriteAndEnd {
                resource,
                epoch,
                value,
            } = wish
            else {
                continue;
            };
            let bytes = value.bytes();
            let has_written = found.values.get(resource).is_some_and(|v| v.2 == bytes);
            let is_held = found
                .rows
                .get(resource)
                .is_some_and(|row| row.epoch == *epoch);
            if has_written && is_held {
                let half = format!("{resource}: written and not released: {wish:?}");
                return Err(Rule::Whole.broken(half));
            }
        }
        Ok(())
    }

    fn check_numbers(&self, found: &Found) -> Result<(), Broken> {
        let mut newest = HashMap::new();
        for (number, resource, epoch) in &found.numbers {
            if !found.numbers_too.contains(number) {
                let half = format!("half of the user's write {number} is there");
                return Err(Rule::Whole.broken(half));
            }
            let newest = newest.entry(resource).or_insert(0);
            if *epoch < *newest {
                return Err(Rule::Epochs.broken(format!(
                    "{resource}: write {number} of epoch {epoch} came after one of epoch {newest}"
                )));
            }
            *newest = *epoch;
            let is_told = self.mutated.get(number) == Some(&(resource.clone(), *epoch));
            let is_it =
                |wish: &Wish| matches!(wish, Wish::Mutate { number: asked, .. } if asked == number);
            if !is_told && !self.doubts().any(is_it) {
                let unasked = format!("nobody asked for the user's write {number}");
                return Err(Rule::Whole.broken(unasked));
            }
        }
        if found.numbers.len() != found.numbers_too.len() {
            return Err(Rule::Whole.broken("half of a user's write is there"));
        }
        match self.mutated.keys().find(|n| !found.numbers_too.contains(n)) {
            Some(number) => {
                let gone = format!("the user's write {number} was told and is gone");
                Err(Rule::Durable.broken(gone))
            }
            None => Ok(()),
        }
    }

    /// Every change of ownership has its record, and the records follow each other.
    fn check_audit(&self, found: &Found) -> Result<(), Broken> {
        let mut newest = BTreeMap::<&str, &FoundRecord>::new();
        let mut grants = BTreeSet::new();
        let mut ends = BTreeSet::new();
        for (index, record) in found.audit.iter().enumerate() {
            if record.id != found.audit[0].id + index as u64 {
                return Err(Rule::Whole.broken(format!("a record is missing before {record:?}")));
            }
            // A rejected write is no change.
            let Some(resource) = record
                .resource
                .as_deref()
                .filter(|_| record.event != "rejected")
            else {
                continue;
            };
            if let "granted" | "taken_over" = record.event {
                grants.insert((resource, record.current, record.holder.as_deref()));
            }
            if let Some(carried) = record.carried {
                ends.insert((resource, carried));
            }
            if let Some(before) = newest.insert(resource, record)
                && before.current >= record.current
            {
                let stuck = format!("epochs do not grow: {before:?}, {record:?}");
                return Err(Rule::Epochs.broken(stuck));
            }
        }
        for (resource, row) in &found.rows {
            match newest.get(resource.as_str()) {
                Some(record) if record.current == row.epoch => {}
                other => {
                    let apart = format!("{resource}: {row:?}, but the audit says {other:?}");
                    return Err(Rule::Whole.broken(apart));
                }
            }
        }
        for (resource, row) in &self.rows {
            for (epoch, holder) in &row.grants {
                if !grants.contains(&(resource.as_str(), *epoch, Some(holder.as_str()))) {
                    let missing = format!("{resource}: no record of the grant of {epoch}");
                    return Err(Rule::Whole.broken(missing));
                }
            }
            for epoch in &row.ends {
                if !ends.contains(&(resource.as_str(), *epoch)) {
                    let missing = format!("{resource}: no record of the end of {epoch}");
                    return Err(Rule::Whole.broken(missing));
                }
            }
        }
        Ok(())
    }
}

impl Row {
    fn is_at(&mut self, epoch: u64, held: bool) {
        if epoch > self.epoch {
            (self.epoch, self.held, self.holder) = (epoch, held, None);
        }
    }
}
