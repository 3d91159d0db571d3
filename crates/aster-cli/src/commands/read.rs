//! `get`, `inspect`, `list`, `audit`: reading needs no lease.

use std::io::{self, IsTerminal};

use aster::conformance::SCRATCH_PREFIX;
use aster::lease::{
    AUDIT_PAGE_MAX, AuditQuery, AuditRecord, LIST_PAGE_MAX, LeaseSnapshot, ListQuery, Principal,
    ResourceName, SerializerError,
};
use serde::Serialize;

use super::inside;
use crate::arguments::{AuditArguments, GetArguments, ListArguments};
use crate::context::Context;
use crate::duration::display;
use crate::failure::{Failure, FailureKind};
use crate::output::{Output, Style, base64, one_line, print, value_lines};
use crate::socket::RESOURCE_VARIABLE;
use crate::socket::client::surrounding_run;

/// `list` stops after this many pages of [`LIST_PAGE_MAX`].
const LIST_PAGES_MAX: usize = 1_000;

/// A register as printed.
#[derive(Debug, Serialize)]
pub(crate) struct Register {
    resource: ResourceName,
    /// The value if it is UTF-8, else `value_base64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
    value_revision: u64,
    epoch: u64,
    #[serde(skip)]
    bytes: Vec<u8>,
}

impl Register {
    pub(crate) fn new(
        resource: ResourceName,
        bytes: Vec<u8>,
        value_revision: u64,
        epoch: u64,
    ) -> Self {
        let value = String::from_utf8(bytes.clone()).ok();
        Self {
            resource,
            value_base64: value.is_none().then(|| base64(&bytes)),
            value,
            value_revision,
            epoch,
            bytes,
        }
    }

    pub(crate) fn nothing_written(resource: &ResourceName) -> Failure {
        Failure::new(
            FailureKind::NothingWritten,
            format!("nothing was ever written to {resource}"),
        )
    }
}

pub(crate) async fn get(context: &Context, arguments: &GetArguments) -> Result<(), Failure> {
    let register = match &arguments.resource {
        Some(resource) if !is_of_surrounding_run(resource) => {
            let registers = context.connect_existing().await?.registers()?;
            match registers.read(resource).await? {
                Some(register) => Register::new(
                    resource.clone(),
                    register.value,
                    register.value_revision,
                    register.epoch,
                ),
                None => return Err(Register::nothing_written(resource)),
            }
        }
        None if surrounding_run().is_none() => {
            return Err(Failure::new(
                FailureKind::Usage,
                "which resource? Outside a run name it: aster get RESOURCE",
            ));
        }
        _ => inside::get()?,
    };
    if context.output.json {
        return context.output.answer(&register, |_| String::new());
    }
    if !io::stdout().is_terminal() {
        return print(&register.bytes);
    }
    let mut text = value_lines(&register.bytes);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    print(text.as_bytes())
}

fn is_of_surrounding_run(resource: &ResourceName) -> bool {
    surrounding_run().is_some()
        && std::env::var_os(RESOURCE_VARIABLE).is_some_and(|own| own == resource.as_str())
}

/// A snapshot as printed; durations in whole milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) resource: ResourceName,
    epoch: u64,
    held: bool,
    holder: Option<Principal>,
    ttl_ms: Option<u64>,
    remaining_ms: Option<u64>,
    /// Not that of the register, which `get` calls `value_revision`.
    row_revision: u64,
    /// How many wait for it; `None` where nobody asked, or where the store cannot tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<usize>,
}

impl From<LeaseSnapshot> for Row {
    fn from(snapshot: LeaseSnapshot) -> Self {
        let millis =
            |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self {
            resource: snapshot.resource,
            epoch: snapshot.epoch,
            held: snapshot.held,
            holder: snapshot.holder,
            ttl_ms: snapshot.ttl.map(millis),
            remaining_ms: snapshot.remaining.map(millis),
            row_revision: snapshot.revision,
            waiting: None,
        }
    }
}

impl Row {
    /// `epoch 3  worker-a  held, 28s left unless renewed`
    pub(super) fn one_line(&self) -> String {
        let holder = one_line(self.holder.as_deref().unwrap_or("-"));
        format!("epoch {:<6}  {holder}  {}", self.epoch, self.state())
    }

    pub(super) fn state(&self) -> String {
        let duration = |ms| display(std::time::Duration::from_millis(ms));
        match (self.held, self.remaining_ms) {
            (false, _) => "free".to_owned(),
            (true, None) => "held".to_owned(),
            (true, Some(0)) => "held, its time is over: somebody may take it".to_owned(),
            (true, Some(left)) => format!("held, {} left unless renewed", duration(left)),
        }
    }

    fn lines(&self, output: Output) -> String {
        let state = match self.held {
            true => output.paint(Style::Good, &self.state()),
            false => output.paint(Style::Dim, &self.state()),
        };
        let mut lines = vec![
            format!(
                "resource  {}",
                output.paint(Style::Bold, &one_line(&self.resource))
            ),
            format!("state     {state}"),
            format!("epoch     {}", self.epoch),
        ];
        if let Some(holder) = &self.holder {
            lines.push(format!("holder    {}", one_line(holder)));
        }
        if let Some(ttl_ms) = self.ttl_ms {
            let ttl = display(std::time::Duration::from_millis(ttl_ms));
            lines.push(format!("ttl       {ttl}"));
        }
        if let Some(waiting) = self.waiting.filter(|waiting| *waiting > 0) {
            lines.push(format!("waiting   {waiting}"));
        }
        lines.join("\n")
    }
}

pub(crate) async fn inspect(context: &Context, resource: &ResourceName) -> Result<(), Failure> {
    let serializer = context.connect_existing().await?.serializer();
    let mut row = Row::from(serializer.snapshot(resource).await?);
    row.waiting = match serializer.queue(resource).await {
        Ok(queue) => Some(queue.len()),
        Err(SerializerError::Unsupported { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    context.output.answer(&row, |output| row.lines(output))
}

/// A name of `aster verify`: nobody's but its own.
fn is_scratch(name: &str) -> bool {
    name.starts_with(SCRATCH_PREFIX)
}

#[derive(Debug, Serialize)]
struct Rows {
    resources: Vec<Row>,
}

pub(crate) async fn list(context: &Context, arguments: &ListArguments) -> Result<(), Failure> {
    let serializer = context.connect_existing().await?.serializer();
    let mut query = ListQuery {
        prefix: arguments.prefix.clone(),
        after: None,
        limit: LIST_PAGE_MAX,
        held_only: arguments.held,
    };
    let is_all = arguments.all || is_scratch(&arguments.prefix);
    let mut resources = Vec::new();
    for _ in 0..LIST_PAGES_MAX {
        let page = serializer.list(query.clone()).await?;
        let is_last = page.len() < LIST_PAGE_MAX;
        query.after = page.last().map(|row| row.resource.clone());
        let shown = page
            .into_iter()
            .filter(|row| is_all || !is_scratch(&row.resource));
        resources.extend(shown.map(Row::from));
        if is_last {
            break;
        }
    }
    let rows = Rows { resources };
    context.output.answer(&rows, |output| {
        let width = rows
            .resources
            .iter()
            .map(|row| one_line(&row.resource).chars().count())
            .max();
        let width = width.unwrap_or(0).min(60);
        let line = |row: &Row| {
            let name = output.paint(Style::Bold, &format!("{:width$}", one_line(&row.resource)));
            format!("{name}  {}", row.one_line())
        };
        rows.resources
            .iter()
            .map(line)
            .collect::<Vec<_>>()
            .join("\n")
    })
}

#[derive(Debug, Serialize)]
struct Records {
    records: Vec<AuditRecord>,
}

pub(crate) async fn audit(context: &Context, arguments: &AuditArguments) -> Result<(), Failure> {
    let audit = context.connect_existing().await?.audit()?;
    let is_all = arguments.all || arguments.resource.is_some();
    let limit = usize::from(arguments.limit);
    let query = AuditQuery {
        resource: arguments.resource.clone(),
        after: None,
        limit: if is_all { limit } else { AUDIT_PAGE_MAX },
    };
    let mut records = audit.audit(query).await?;
    if !is_all {
        records.retain(|record| !record.resource.as_deref().is_some_and(is_scratch));
        records.drain(..records.len().saturating_sub(limit));
    }
    let records = Records { records };
    context.output.answer(&records, |output| {
        let line = |record: &AuditRecord| audit_line(record, output);
        records
            .records
            .iter()
            .map(line)
            .collect::<Vec<_>>()
            .join("\n")
    })
}

fn audit_line(record: &AuditRecord, output: Output) -> String {
    let style = match record.event {
        aster::lease::AuditEvent::Rejected => Style::Bad,
        aster::lease::AuditEvent::Granted | aster::lease::AuditEvent::TakenOver => Style::Good,
        _ => Style::Accent,
    };
    let event = output.paint(style, &format!("{:10}", record.event.name()));
    let mut line = format!("{}  {event}", utc(record.at_unix_ms));
    let mut add = |text: String| line.push_str(&format!("  {text}"));
    if let Some(resource) = &record.resource {
        add(one_line(resource));
    }
    add(match record.epoch_carried {
        Some(carried) if carried != record.epoch_current => {
            format!("epoch {carried} (now {})", record.epoch_current)
        }
        _ => format!("epoch {}", record.epoch_current),
    });
    if let Some(holder) = &record.holder {
        add(format!("holder {}", one_line(holder)));
    }
    if let Some(actor) = &record.actor
        && record.holder.as_deref() != Some(actor)
    {
        add(format!("by {}", one_line(actor)));
    }
    if let Some(detail) = &record.detail {
        add(one_line(detail));
    }
    if record.count > 1 {
        add(format!("({} times)", record.count));
    }
    line
}

/// `2026-11-29T21:23:31Z` from milliseconds since 1970.
pub(super) fn utc(unix_ms: u64) -> String {
    let (days, second) = (unix_ms / 86_400_000, unix_ms / 1_000 % 86_400);
    // Days to a date in the proleptic Gregorian calendar, counted from 1 March of year 0.
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_as_everyone_else() {
        for (unix_ms, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_796_000_000_999, "2026-11-30T00:53:20Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(unix_ms), text);
        }
    }

    #[test]
    fn a_value_is_text_or_base64_in_json() {
        let resource = ResourceName::new("r").unwrap();
        let text = Register::new(resource.clone(), b"v1".to_vec(), 3, 7);
        let json = serde_json::to_string(&text).unwrap();
        assert_eq!(
            json,
            r#"{"resource":"r","value":"v1","value_revision":3,"epoch":7}"#
        );
        let binary = Register::new(resource, vec![0xff], 3, 7);
        let json = serde_json::to_string(&binary).unwrap();
        assert_eq!(
            json,
            r#"{"resource":"r","value_base64":"/w==","value_revision":3,"epoch":7}"#
        );
    }
}
