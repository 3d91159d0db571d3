//! What is on a disk: what programs see, and what a power loss would leave.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use aster_evidence::Random;

const PAGE: usize = 4096;
const SECTOR: usize = 512;
/// 1 is the directory, and 2 is where programs say what they were told.
const LAST_RESERVED_INODE: u64 = 2;

/// Something that happened on a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A new empty file.
    Create {
        /// Its name.
        name: OsString,
        /// Its number.
        inode: u64,
    },
    /// A name went away. The file stays for those who have it open.
    Remove {
        /// The name.
        name: OsString,
    },
    /// A file got another name.
    Rename {
        /// The old name.
        from: OsString,
        /// The new one.
        to: OsString,
    },
    /// A write, as far as it went.
    Write {
        /// Of which file.
        inode: u64,
        /// Where, in bytes.
        offset: usize,
        /// What.
        data: Arc<[u8]>,
    },
    /// A file was cut or extended.
    Resize {
        /// Which file.
        inode: u64,
        /// To how many bytes.
        size: usize,
    },
    /// All of a file was made durable.
    Sync {
        /// Which file.
        inode: u64,
    },
    /// A sync failed: what was waiting for it is on the disk or not, as `seed` picks, and no later
    /// sync writes it again.
    SyncFailed {
        /// Which file.
        inode: u64,
        /// Picks what is on the disk.
        seed: u64,
    },
    /// The directory was made durable.
    SyncNames,
    /// A program said what it asked or was told. No step of the disk.
    Told(String),
}

impl Event {
    /// Whether it is a step of the disk, before which the power can be cut.
    #[must_use]
    pub fn is_step(&self) -> bool {
        !matches!(self, Event::Told(_))
    }
}

/// What a power loss does to that which was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    /// All of it is gone.
    Everything,
    /// All of it is there: what the death of all processes leaves.
    Nothing,
    /// Each page of 4096 bytes is there or not.
    Pages,
    /// Each write is there or not.
    Writes,
    /// Each sector of 512 bytes of each write is there or not.
    Sectors,
    /// Everything up to some write is there, half of that one, and nothing after it.
    Tail,
}

impl Loss {
    /// All of them.
    pub const ALL: [Loss; 6] = [
        Loss::Everything,
        Loss::Nothing,
        Loss::Pages,
        Loss::Writes,
        Loss::Sectors,
        Loss::Tail,
    ];
}

/// What a broken disk does to content that was synced. Only for controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// Two pages of a file have changed places.
    Swapped,
    /// The second half of a page is gone.
    Torn,
    /// The first page is gone.
    Headless,
}

#[derive(Debug, Clone)]
enum Change {
    Write { offset: usize, data: Arc<[u8]> },
    Resize(usize),
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Change::Write { offset, data } => write(content, *offset, data),
            Change::Resize(size) => content.resize(*size, 0),
        }
    }
}

#[derive(Debug, Clone, Default)]
struct File {
    content: Vec<u8>,
    durable: Vec<u8>,
    /// What a sync would make durable, in its order.
    pending: Vec<Change>,
}

/// One directory of files.
#[derive(Debug, Clone, Default)]
pub struct Volume {
    names: BTreeMap<OsString, u64>,
    durable_names: BTreeMap<OsString, u64>,
    /// Changes of names since they were synced.
    pending_names: Vec<Event>,
    files: BTreeMap<u64, File>,
    last_inode: u64,
}

impl Volume {
    /// The file of that name.
    #[must_use]
    pub fn find(&self, name: &std::ffi::OsStr) -> Option<u64> {
        self.names.get(name).copied()
    }

    /// All names, and their files.
    pub fn names(&self) -> impl Iterator<Item = (&OsString, u64)> {
        self.names.iter().map(|(name, inode)| (name, *inode))
    }

    /// What programs see in a file.
    #[must_use]
    pub fn content(&self, inode: u64) -> Option<&[u8]> {
        Some(&self.files.get(&inode)?.content)
    }

    /// The number of the next new file.
    #[must_use]
    pub fn next_inode(&self) -> u64 {
        self.last_inode.max(LAST_RESERVED_INODE) + 1
    }

    /// Lets `event` happen.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Create { name, inode } => {
                self.last_inode = self.last_inode.max(*inode);
                self.files.insert(*inode, File::default());
                self.change_name(event);
                self.names.insert(name.clone(), *inode);
            }
            Event::Remove { .. } | Event::Rename { .. } => {
                self.change_name(event);
                apply_to_names(&mut self.names, event);
            }
            Event::Write {
                inode,
                offset,
                data,
            } => {
                let data = data.clone();
                let offset = *offset;
                self.change(*inode, Change::Write { offset, data });
            }
            Event::Resize { inode, size } => self.change(*inode, Change::Resize(*size)),
            Event::Sync { inode } => {
                if let Some(file) = self.files.get_mut(inode) {
                    for change in file.pending.drain(..) {
                        change.apply(&mut file.durable);
                    }
                }
            }
            Event::SyncFailed { inode, seed } => {
                let mut random = Random::new(*seed);
                if let Some(file) = self.files.get_mut(inode) {
                    file.durable = file.after_cut(Loss::Writes, &mut random);
                    file.pending.clear();
                }
            }
            Event::SyncNames => {
                self.durable_names = self.names.clone();
                self.pending_names.clear();
            }
            Event::Told(_) => {}
        }
    }

    /// What is left when the power goes now. Everything there is durable.
    #[must_use]
    pub fn after_cut(&self, loss: Loss, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let names = self.names_after_cut(loss, &mut random);
        let is_named: BTreeSet<u64> = names.values().copied().collect();
        let mut files = BTreeMap::new();
        for (inode, file) in &self.files {
            let left = file.after_cut(loss, &mut random);
            if is_named.contains(inode) {
                let file = File {
                    durable: left.clone(),
                    content: left,
                    pending: Vec::new(),
                };
                files.insert(*inode, file);
            }
        }
        Self {
            durable_names: names.clone(),
            names,
            pending_names: Vec::new(),
            files,
            last_inode: self.last_inode,
        }
    }

    /// Does that to the file of that name; `seed` picks the pages.
    pub fn damage(&mut self, name: &std::ffi::OsStr, damage: Damage, seed: u64) {
        let mut random = Random::new(seed);
        let Some(file) = self.find(name).and_then(|inode| self.files.get_mut(&inode)) else {
            return;
        };
        let pages = file.content.len() / PAGE;
        if pages < 3 {
            return;
        }
        // The first page is special to every format.
        let mut page = || 1 + usize::try_from(random.below(pages as u64 - 1)).unwrap_or(0);
        let (one, other) = (page() * PAGE, page() * PAGE);
        match damage {
            Damage::Swapped => {
                for byte in 0..PAGE {
                    file.content.swap(one + byte, other + byte);
                }
            }
            Damage::Torn => file.content[one + PAGE / 2..one + PAGE].fill(0),
            Damage::Headless => file.content[..PAGE].fill(0),
        }
        file.durable.clone_from(&file.content);
    }

    /// A number that tells this content from any other.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (name, inode) in &self.names {
            (name, inode, self.content(*inode)).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn change(&mut self, inode: u64, change: Change) {
        if let Some(file) = self.files.get_mut(&inode) {
            change.apply(&mut file.content);
            file.pending.push(change);
        }
    }

    fn change_name(&mut self, event: &Event) {
        self.pending_names.push(event.clone());
    }

    fn names_after_cut(&self, loss: Loss, random: &mut Random) -> BTreeMap<OsString, u64> {
        let choice = match loss {
            Loss::Everything => 0,
            Loss::Nothing => 1,
            _ => random.below(3),
        };
        match choice {
            0 => self.durable_names.clone(),
            1 => self.names.clone(),
            _ => {
                let mut names = self.durable_names.clone();
                for event in &self.pending_names {
                    if random.chance(1, 2) {
                        apply_to_names(&mut names, event);
                    }
                }
                names
            }
        }
    }
}

impl File {
    fn after_cut(&self, loss: Loss, random: &mut Random) -> Vec<u8> {
        if self.pending.is_empty() {
            return self.durable.clone();
        }
        // Sometimes nearly all of it reached the disk, sometimes nearly none.
        let kept = [1, 4, 7][usize::try_from(random.below(3)).unwrap_or(0)];
        let mut left = self.durable.clone();
        match loss {
            Loss::Everything => {}
            Loss::Nothing => left.clone_from(&self.content),
            Loss::Pages => {
                if random.chance(1, 2) {
                    left.resize(self.content.len(), 0);
                }
                for page in self.dirty_pages() {
                    if random.chance(kept, 8) {
                        copy_page(page, &self.content, &mut left);
                    }
                }
            }
            Loss::Writes => {
                for change in &self.pending {
                    if random.chance(kept, 8) {
                        change.apply(&mut left);
                    }
                }
            }
            Loss::Sectors => {
                for change in &self.pending {
                    match change {
                        Change::Write { offset, data } => {
                            for (at, sector) in sectors(*offset, data) {
                                if random.chance(kept, 8) {
                                    write(&mut left, at, sector);
                                }
                            }
                        }
                        Change::Resize(_) if random.chance(1, 2) => change.apply(&mut left),
                        Change::Resize(_) => {}
                    }
                }
            }
            Loss::Tail => {
                let whole = random.below(self.pending.len() as u64);
                let whole = usize::try_from(whole).unwrap_or(0);
                for change in &self.pending[..whole] {
                    change.apply(&mut left);
                }
                if let Change::Write { offset, data } = &self.pending[whole] {
                    write(&mut left, *offset, &data[..data.len() / 2]);
                }
            }
        }
        left
    }

    fn dirty_pages(&self) -> BTreeSet<usize> {
        let mut pages = BTreeSet::new();
        let mut size = self.durable.len();
        for change in &self.pending {
            let (start, end) = match change {
                Change::Write { offset, data } => (*offset, offset + data.len()),
                Change::Resize(to) => (size.min(*to), size.max(*to)),
            };
            size = match change {
                Change::Write { .. } => size.max(end),
                Change::Resize(to) => *to,
            };
            pages.extend(start / PAGE..end.div_ceil(PAGE));
        }
        pages
    }
}

/// A name that is not there is not moved: its own creation was lost.
fn apply_to_names(names: &mut BTreeMap<OsString, u64>, event: &Event) {
    match event {
        Event::Create { name, inode } => {
            names.insert(name.clone(), *inode);
        }
        Event::Remove { name } => {
            names.remove(name);
        }
        Event::Rename { from, to } => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
        _ => {}
    }
}

fn write(content: &mut Vec<u8>, offset: usize, data: &[u8]) {
    let end = offset + data.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(data);
}

/// The pieces of a write that lie in different sectors of the disk.
fn sectors(offset: usize, data: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = offset;
    let mut rest = data;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let length = (SECTOR - at % SECTOR).min(rest.len());
        let (sector, more) = rest.split_at(length);
        let found = (at, sector);
        (at, rest) = (at + length, more);
        Some(found)
    })
}

/// Copies as much of a page as both have.
fn copy_page(page: usize, from: &[u8], to: &mut [u8]) {
    let start = page * PAGE;
    let end = (start + PAGE).min(from.len()).min(to.len());
    if start < end {
        to[start..end].copy_from_slice(&from[start..end]);
    }
}
