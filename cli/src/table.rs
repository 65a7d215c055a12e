//! Tables and short texts for terminals.

use std::io::IsTerminal;

use comfy_table::{ContentArrangement, Table, presets};
use phalanx_common::ids::GpuId;
use phalanx_common::units::{Millis, Time};

/// Width used where the output is no terminal.
const PLAIN_WIDTH: u16 = 120;

/// A table without lines, one row a line: for lists that programs cut, too.
#[must_use]
pub fn list(headers: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(headers);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    trim_lines(&table.to_string())
}

/// A table with lines that wraps long cells to the width of the terminal.
#[must_use]
pub fn framed(headers: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(headers);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    if !std::io::stdout().is_terminal() {
        table.set_width(PLAIN_WIDTH);
    }
    table.add_rows(rows);
    table.to_string()
}

/// Breaks a line between words so that none is longer than `width` where that can be done.
#[must_use]
pub fn wrap(line: &str, width: usize, first: &str, further: &str) -> String {
    let mut text = first.to_owned();
    let mut length = first.len();
    let mut indent = "";
    for word in line.split(' ') {
        if length + indent.len() + word.len() > width && length > further.len() {
            text.push('\n');
            text.push_str(further);
            length = further.len();
        } else {
            text.push_str(indent);
            length += indent.len();
        }
        text.push_str(word);
        length += word.len();
        indent = " ";
    }
    text
}

fn trim_lines(text: &str) -> String {
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// `42s`, `7m`, `3h`, `2d`: as kubectl shows ages.
#[must_use]
pub fn age(age: Millis) -> String {
    let seconds = age.0 / 1000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// The time now, as the coordinator counts it.
#[must_use]
pub fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Time(since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
}

/// GPU indexes as ranges: `0-3,6`.
#[must_use]
pub fn ranges(indexes: &[u32]) -> String {
    let mut sorted = indexes.to_vec();
    sorted.sort_unstable();
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for index in sorted {
        match spans.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(index) => *last = index,
            _ => spans.push((index, index)),
        }
    }
    let text = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    spans.into_iter().map(text).collect::<Vec<_>>().join(",")
}

/// Shortens UUIDs to the first groups that tell all of `among` apart.
pub struct ShortIds {
    length: usize,
}

impl ShortIds {
    /// Finds the shortest length, at least `GPU-` and 8 digits.
    #[must_use]
    pub fn among(ids: impl IntoIterator<Item = GpuId>) -> Self {
        let mut texts: Vec<String> = ids.into_iter().map(|id| id.to_string()).collect();
        texts.sort_unstable();
        texts.dedup();
        let shared =
            |pair: &[String]| pair[0].bytes().zip(pair[1].bytes()).take_while(|(a, b)| a == b).count();
        let longest = texts.windows(2).map(shared).max().unwrap_or(0);
        Self { length: (longest + 1).max(12) }
    }

    /// The short form.
    #[must_use]
    pub fn show(&self, id: GpuId) -> String {
        id.to_string().chars().take(self.length).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_ranges() {
        assert_eq!(
            [0, 119_999, 120_000, 7_200_000, 172_800_000].map(|ms| age(Millis(ms))),
            ["0s", "119s", "2m", "2h", "2d"]
        );
        assert_eq!(ranges(&[6, 0, 1, 2, 3]), "0-3,6");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn short_ids_stay_apart() {
        let ids = [GpuId(1 << 100), GpuId(2 << 100), GpuId((2 << 100) + (1 << 90))];
        let short = ShortIds::among(ids);
        let mut texts: Vec<String> = ids.iter().map(|id| short.show(*id)).collect();
        texts.dedup();
        assert_eq!(texts.len(), 3, "{texts:?}");
        assert_eq!(ShortIds::among([GpuId(7)]).show(GpuId(7)), "GPU-00000000");
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        assert_eq!(wrap("a bb ccc", 20, "- ", "  "), "- a bb ccc");
        assert_eq!(wrap("aaaa bbbb cc dd", 9, "- ", "   "), "- aaaa\n   bbbb\n   cc dd");
        assert_eq!(wrap("looooooooong", 5, "", " "), "looooooooong");
    }

    #[test]
    fn a_list_has_no_trailing_blanks() {
        let text = list(&["NAME", "AGE"], vec![vec!["a".to_owned(), String::new()]]);
        assert_eq!(text, "NAME  AGE\na");
    }
}
