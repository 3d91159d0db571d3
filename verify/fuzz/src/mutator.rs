//! Makes new inputs of old ones, by one seed.

/// The numbers at which parsers go wrong.
const EDGES: [u64; 14] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x7fff_ffff_ffff_fffe,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_ffff,
];
/// The same in words.
const NUMBERS: [&str; 8] = [
    "0",
    "-1",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e400",
    "0.1",
];
/// The most changes of one input at a time.
const CHANGES_MAX: usize = 8;
/// The longest run of bytes that one change touches.
const RUN_MAX: usize = 64;

/// Choices that a seed repeats, by the lengths of what is chosen from.
#[derive(Debug, Clone)]
pub struct Random(aster_evidence::Random);

impl Random {
    /// Starts at `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(aster_evidence::Random::new(seed))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// A number below `bound`, or 0 when there is none.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound as u64) as usize
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }
}

/// Mutates inputs with the words of one target.
#[derive(Debug, Clone)]
pub struct Mutator {
    random: Random,
    words: Vec<Vec<u8>>,
    bytes_max: usize,
}

impl Mutator {
    /// Starts at `seed`. `dictionary` has libFuzzer's form.
    #[must_use]
    pub fn new(seed: u64, dictionary: &str, bytes_max: usize) -> Self {
        Self {
            random: Random::new(seed),
            words: words_of(dictionary),
            bytes_max,
        }
    }

    /// A new input, made of the known ones.
    pub fn mutate(&mut self, known: &[Vec<u8>]) -> Vec<u8> {
        let mut input = self.random.pick(known).cloned().unwrap_or_default();
        // Mostly few changes: most of what is interesting is near to what is right.
        let changes = 1 + self
            .random
            .below(CHANGES_MAX)
            .min(self.random.below(CHANGES_MAX));
        for _ in 0..changes {
            self.change(&mut input, known);
        }
        input.truncate(self.bytes_max);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, known: &[Vec<u8>]) {
        let random = &mut self.random;
        let at = random.below(input.len() + 1);
        let run = 1 + random.below(RUN_MAX.min(input.len() - at.min(input.len())).max(1));
        let end = (at + run).min(input.len());
        match random.below(13) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 if at < input.len() => input[at] = random.bits() as u8,
            2 => insert(input, at, &[random.bits() as u8]),
            3 => drop(input.drain(at..end)),
            4 => {
                let again = input[at..end].to_vec();
                for _ in 0..=random.below(8) {
                    insert(input, at, &again);
                }
            }
            5 | 6 => {
                if let Some(word) = random.pick(&self.words).cloned() {
                    match random.below(2) {
                        0 => insert(input, at, &word),
                        _ => overwrite(input, at, &word),
                    }
                }
            }
            7 => {
                let number = random.pick(&EDGES).copied().unwrap_or(0).to_le_bytes();
                let width = [1, 2, 4, 8][random.below(4)];
                let mut bytes = number[..width].to_vec();
                if random.below(2) == 0 {
                    bytes.reverse();
                }
                overwrite(input, at, &bytes);
            }
            8 => self.change_number(input, at),
            9 => {
                if let Some(other) = random.pick(known) {
                    let from = random.below(other.len() + 1);
                    let length = random.below(other.len() - from + 1);
                    insert(input, at, &other[from..from + length]);
                }
            }
            10 => {
                if let Some(other) = random.pick(known) {
                    input.truncate(at);
                    input.extend(&other[random.below(other.len() + 1)..]);
                }
            }
            11 => input.truncate(at),
            _ => {
                let byte = random.bits() as u8;
                input[at..end].fill(byte);
            }
        }
    }

    /// Puts another number in the place of the digits at or behind `at`.
    fn change_number(&mut self, input: &mut Vec<u8>, at: usize) {
        let Some(start) = (at..input.len()).find(|at| input[*at].is_ascii_digit()) else {
            return;
        };
        let digits = input[start..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit());
        let end = start + digits.count();
        let number = self.random.pick(&NUMBERS).copied().unwrap_or("0");
        input.splice(start..end, number.bytes());
    }
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    input.splice(at..at, bytes.iter().copied());
}

fn overwrite(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = (at + bytes.len()).min(input.len());
    input.splice(at..end, bytes.iter().copied());
}

/// The words of a dictionary: one `"…"` a line, with `\\`, `\"` and `\xNN`.
#[must_use]
pub fn words_of(dictionary: &str) -> Vec<Vec<u8>> {
    dictionary.lines().filter_map(word_of).collect()
}

fn word_of(line: &str) -> Option<Vec<u8>> {
    let quoted = line.trim().strip_prefix('"')?.strip_suffix('"')?;
    let mut word = Vec::new();
    let mut rest = quoted.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match (first, after) {
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).ok()?;
                word.push(u8::from_str_radix(digits, 16).ok()?);
                rest = after;
            }
            (b'\\', [escaped, after @ ..]) => {
                word.push(*escaped);
                rest = after;
            }
            (byte, _) => word.push(*byte),
        }
    }
    Some(word)
}

#[cfg(test)]
mod tests {
    use super::{Mutator, words_of};

    #[test]
    fn one_seed_makes_the_same_inputs_and_keeps_the_bound() {
        let known = vec![b"sqlite:leases.db".to_vec(), Vec::new()];
        let made = |seed| {
            let mut mutator = Mutator::new(seed, "\"memory:\"", 40);
            (0..2_000)
                .map(|_| mutator.mutate(&known))
                .collect::<Vec<_>>()
        };
        assert_eq!(made(7), made(7));
        assert_ne!(made(7), made(8));
        assert!(made(7).iter().all(|input| input.len() <= 40));
    }

    #[test]
    fn dictionaries_are_read_as_libfuzzer_reads_them() {
        let text = "# a remark\n\"plain\"\n\"\\x00\\xff\\\"\\\\\"\nnonsense\n";
        assert_eq!(
            words_of(text),
            [b"plain".to_vec(), b"\x00\xff\"\\".to_vec()]
        );
    }
}
