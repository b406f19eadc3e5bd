//! What the last answers were asked with, to tell a client where its next prompt has gone another way and so what the
//! prefix cache could not give it. Hashes alone: nothing of a text is kept.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher as _};
use std::io;

use parking_lot::Mutex;
use serde_json::Value;

use crate::serve::chat::Chat;

/// Answers that are remembered.
const ROWS: usize = 1024;
/// Longest id of an answer.
const ID_BYTES: usize = 32;

/// What the table takes.
pub(crate) fn remembered_bytes() -> usize {
    ROWS * (size_of::<Row>() + ID_BYTES)
}

/// What a prompt was made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Marks {
    system: u64,
    tools: u64,
    /// Variables of the template, and what of old thoughts is kept.
    switches: u64,
    /// Of the messages up to each, behind the system's.
    messages: Vec<u64>,
}

impl Marks {
    /// Of a conversation as the template sees it, so that what has no part in the prompt makes no difference. Neither has the
    /// name that a request gives the model: there is one here, whatever it is called.
    pub(crate) fn of(chat: &Chat) -> Self {
        let messages = chat.messages().as_array().map(Vec::as_slice).unwrap_or_default();
        let systemic = |message: &&Value| matches!(message["role"].as_str(), Some("system" | "developer"));
        let lead = messages.iter().take_while(systemic).count();
        let (system, said) = messages.split_at(lead);
        let mut hash = 0;
        let chain = |message: &Value| -> u64 {
            hash = hashed(hash, message);
            hash
        };
        let tools = chat.tools().map_or(0, |tools| hashed(0, &tools.definitions));
        Self {
            system: system.iter().fold(0, hashed),
            tools,
            switches: hashed(0, &chat.switches()),
            messages: said.iter().map(chain).collect(),
        }
    }
}

/// The hash of a value behind what has another.
fn hashed(before: u64, value: &Value) -> u64 {
    struct Hashing(DefaultHasher);
    impl io::Write for Hashing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut into = Hashing(DefaultHasher::new());
    into.0.write_u64(before);
    serde_json::to_writer(&mut into, value).expect("a JSON value serialises");
    into.0.finish()
}

/// Where a prompt goes another way than an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Nowhere: it goes on where the other has ended.
    None,
    System,
    Tools,
    /// What else has a part in the prompt.
    Switches,
    Messages,
    /// The earlier one is not remembered.
    Unknown,
}

struct Row {
    id: String,
    system: u64,
    tools: u64,
    switches: u64,
    /// How many messages there were, and the hash of all of them.
    messages: (usize, u64),
}

/// The last answers.
#[derive(Default)]
pub(crate) struct Remembered(Mutex<VecDeque<Row>>);

impl Remembered {
    /// Keeps what an answer was asked with; the oldest goes.
    pub(crate) fn keep(&self, id: &str, marks: &Marks) {
        debug_assert!(id.len() <= ID_BYTES);
        let mut rows = self.0.lock();
        if rows.len() == ROWS {
            rows.pop_front();
        }
        let Marks { system, tools, switches, ref messages } = *marks;
        let messages = (messages.len(), messages.last().copied().unwrap_or(0));
        rows.push_back(Row { id: id.to_owned(), system, tools, switches, messages });
    }

    /// The first difference between the prompt of an earlier answer and one that comes now.
    pub(crate) fn compare(&self, id: &str, marks: &Marks) -> Change {
        let rows = self.0.lock();
        let Some(row) = rows.iter().rev().find(|row| row.id == id) else { return Change::Unknown };
        let (count, last) = row.messages;
        let goes_on = count == 0 || marks.messages.get(count - 1) == Some(&last);
        for (same, change) in [
            (row.system == marks.system, Change::System),
            (row.tools == marks.tools, Change::Tools),
            (row.switches == marks.switches, Change::Switches),
            (goes_on, Change::Messages),
        ] {
            if !same {
                return change;
            }
        }
        Change::None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::serve::api::Api;
    use crate::serve::fields::Fields;
    use crate::serve::model::Caps;

    fn marks(n: u64, messages: &[u64]) -> Marks {
        Marks { system: n, tools: 2, switches: 3, messages: messages.to_vec() }
    }

    #[test]
    fn a_message_counts_with_those_before_it() {
        let marks = |first: &str| {
            let said = |role: &str, content: &str| json!({"role": role, "content": content});
            let body = json!({"messages": [said("user", first), said("assistant", "a"), said("user", "u")]});
            let fields = Fields::body(body.as_object().unwrap());
            Marks::of(&Chat::read(&fields, &Caps::default(), &Api::default()).unwrap())
        };
        let table = Remembered::default();
        table.keep("msg_a", &marks("x"));
        assert_eq!(table.compare("msg_a", &marks("x")), Change::None);
        assert_eq!(table.compare("msg_a", &marks("y")), Change::Messages);
    }

    #[test]
    fn the_first_difference_counts_and_the_oldest_goes() {
        let table = Remembered::default();
        table.keep("msg_a", &marks(0, &[5, 6]));
        for (now, change) in [
            (marks(0, &[5, 6]), Change::None),
            (marks(0, &[5, 6, 7, 8]), Change::None),
            (marks(0, &[5]), Change::Messages),
            (marks(0, &[5, 7, 6]), Change::Messages),
            (marks(9, &[5]), Change::System),
            (Marks { tools: 9, ..marks(9, &[5, 6]) }, Change::System),
            (Marks { tools: 9, switches: 9, ..marks(0, &[5, 6]) }, Change::Tools),
            (Marks { switches: 9, ..marks(0, &[1]) }, Change::Switches),
        ] {
            assert_eq!(table.compare("msg_a", &now), change, "{now:?}");
        }
        assert_eq!(table.compare("msg_b", &marks(0, &[])), Change::Unknown);
        table.keep("msg_b", &marks(0, &[]));
        assert_eq!(table.compare("msg_b", &marks(0, &[1, 2])), Change::None, "any messages go on behind none");
        for i in 0..ROWS {
            table.keep(&format!("msg_{i}"), &marks(1, &[]));
        }
        assert_eq!(table.compare("msg_a", &marks(0, &[5, 6])), Change::Unknown);
        assert_eq!((table.compare("msg_0", &marks(1, &[])), table.0.lock().len()), (Change::None, ROWS));
    }
}
