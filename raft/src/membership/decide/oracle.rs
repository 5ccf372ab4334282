//! The rules once more, in the words of `cases.txt` and written from the prose of [`super`] alone, so that the whole table
//! of (mode, place, own disk, what each peer answers) can be held against them. It knows no type of the code that it
//! judges: a disk is its place and whether it is a later one, an answer is its word.

/// A disk: the number of its place, and whether it came after a loss.
type Disk = (usize, bool);

const PLACES: [&str; 3] = ["a", "b", "c"];

/// One combination.
pub(super) struct World<'a> {
    pub(super) mode: &'a str,
    /// The place asked about.
    pub(super) me: usize,
    /// The word for its disk.
    pub(super) held: &'a str,
    /// (place, word) of the two others, in the order of their names.
    pub(super) others: [(usize, &'a str); 2],
}

/// A founding list: the cluster, and whether the disk of `c` in it is the later one.
fn promised(word: &str) -> Option<(u8, bool)> {
    match word.trim_end_matches('\'') {
        "L" => Some((7, false)),
        "K" => Some((8, false)),
        "M" => Some((9, true)),
        _ => None,
    }
}

fn later(word: &str) -> bool {
    word.ends_with('\'')
}

fn cluster(word: &str) -> Option<u8> {
    word.strip_prefix('m').and_then(|rest| rest.as_bytes().first()).map(|digit| digit - b'0')
}

impl World<'_> {
    fn mine(&self) -> Disk {
        (self.me, later(self.held))
    }

    /// The disk that answers at a place now, this one's included.
    fn current(&self, place: usize) -> Option<Disk> {
        if place == self.me {
            return Some(self.mine());
        }
        let (_, word) = self.others.into_iter().find(|(other, _)| *other == place)?;
        (word != "-").then(|| (place, later(word)))
    }

    /// What a member lists: (name, disk, voter).
    fn listing(&self, (place, word): (usize, &str)) -> Vec<(&'static str, Disk, bool)> {
        let three = |c: bool| vec![("a", (0, false), true), ("b", (1, false), true), ("c", (2, c), true)];
        match word {
            "m7" | "m7*" | "m7>" => three(false),
            "m7-" => three(true),
            "m7l*" => vec![("a", (0, false), true), ("b", (1, false), true), ("c", self.mine(), false)],
            "m7-wrong" => vec![("z", self.mine(), true)],
            "m5" | "m5*" => vec![(PLACES[place], (place, false), true)],
            _ => Vec::new(),
        }
    }

    /// The place that a member takes for the leader's.
    fn leader(&self, (place, word): (usize, &str)) -> Option<usize> {
        match word {
            "m7>" => Some(0),
            "m7*" | "m7-" | "m7l*" | "m5*" => Some(place),
            _ => None,
        }
    }

    fn leads(&self, other: (usize, &str)) -> bool {
        self.leader(other) == Some(other.0)
    }

    fn members(&self) -> impl Iterator<Item = (usize, &str)> {
        self.others.into_iter().filter(|(_, word)| cluster(word).is_some())
    }

    /// What is to be done, as `cases.txt` writes it.
    pub(super) fn verdict(&self) -> String {
        if self.held == "m7" {
            return "start".into();
        }
        // A copied disk, a founder alone among names of others, two clusters: only people can tell.
        if self.others.iter().any(|(_, word)| *word == "twin") || self.mode == "solo" {
            return "stop".into();
        }
        let clusters: Vec<u8> = self.members().filter_map(|(_, word)| cluster(word)).collect();
        match clusters[..] {
            [] => self.founding(),
            [x, y] if x != y => "stop".into(),
            [cluster, ..] => self.entering(cluster),
        }
    }

    fn entering(&self, cluster: u8) -> String {
        let rows: Vec<_> = self.members().flat_map(|member| self.listing(member)).collect();
        let counted: Vec<_> = rows.iter().filter(|(_, disk, _)| *disk == self.mine()).collect();
        if counted.iter().any(|(name, _, _)| *name != PLACES[self.me]) {
            return "stop".into();
        }
        let own = promised(self.held);
        let found = if own.is_some_and(|(promised, _)| promised == cluster) { " found" } else { "" };
        if !counted.is_empty() {
            let voter = counted.iter().any(|(_, _, voter)| *voter);
            return format!("adopt {cluster}{found} {}", if voter { "voter" } else { "learner" });
        }
        match own {
            // A member of the cluster that was promised: all had promised, so it came true; unless its leader says that
            // this disk's place has been given to another since.
            Some((promised, _)) if promised == cluster => {
                let replaced = self.members().any(|member| self.leads(member) && !self.listing(member).is_empty());
                if replaced { "drop".into() } else { format!("adopt {cluster} found voter") }
            }
            Some(_) => "stop".into(),
            None => self.asking(cluster),
        }
    }

    fn asking(&self, cluster: u8) -> String {
        let told = |member: &(usize, &str)| !self.listing(*member).is_empty();
        let source = self.members().filter(told).find(|m| self.leads(*m)).or_else(|| self.members().find(told));
        let voters: Vec<_> =
            source.map(|member| self.listing(member)).unwrap_or_default().into_iter().filter(|row| row.2).collect();
        let place = |name: &str| PLACES.iter().position(|known| *known == name);
        let gone = voters
            .iter()
            .filter(|(name, disk, _)| {
                place(name).and_then(|place| self.current(place)).is_some_and(|current| current != *disk)
            })
            .count();
        if !voters.is_empty() && (voters.len() - gone) * 2 <= voters.len() {
            return "wait".into();
        }
        let knowing: Vec<_> = self.members().filter(|member| self.leader(*member).is_some()).collect();
        let (first, rest): (Vec<_>, Vec<_>) = knowing.into_iter().partition(|member| self.leads(*member));
        let via: Vec<&str> = first.into_iter().chain(rest).map(|(place, _)| PLACES[place]).collect();
        if via.is_empty() { "wait".into() } else { format!("ask {cluster} via {}", via.join(",")) }
    }

    fn founding(&self) -> String {
        let silent = self.others.iter().any(|(_, word)| *word == "-");
        let strangers = self.others.iter().any(|(_, word)| *word == "other");
        match promised(self.held) {
            Some(_) if strangers && self.mode == "peers" => "stop".into(),
            Some(own) => self.keeping(own, silent),
            None if self.mode == "never" => "wait".into(),
            None if strangers => "stop".into(),
            None if silent || self.me != 0 => "wait".into(),
            None => self.proposing(),
        }
    }

    /// This disk has promised.
    fn keeping(&self, own: (u8, bool), silent: bool) -> String {
        let named = |place: usize| (place, place == 2 && own.1);
        if !silent && (0..3).any(|place| self.current(place) != Some(named(place))) {
            return "drop".into();
        }
        let lacking: Vec<_> =
            self.others.into_iter().filter(|(_, word)| *word != "-" && promised(word) != Some(own)).collect();
        if self.mode != "peers" {
            return "wait".into();
        }
        if !silent && lacking.is_empty() {
            return format!("adopt {} found voter", own.0);
        }
        let able: Vec<&str> = lacking
            .into_iter()
            .filter(|(place, _)| self.current(*place) == Some(named(*place)))
            .map(|(place, _)| PLACES[place])
            .collect();
        if able.is_empty() || self.me != 0 {
            return "wait".into();
        }
        let c = if own.1 { 103 } else { 3 };
        format!("propose {} a1 b2 c{c} to {}", own.0, able.join(","))
    }

    /// All are empty or have promised, and this is the first of the names.
    fn proposing(&self) -> String {
        let number = |place: usize| {
            let (place, later) = self.current(place).unwrap_or((place, false));
            place + 1 + if later { 100 } else { 0 }
        };
        let ids = [number(0), number(1), number(2)];
        let mut chosen = None;
        for (_, word) in self.others {
            if let Some(list) = promised(word) {
                if ids != [1, 2, if list.1 { 103 } else { 3 }] {
                    return "wait".into();
                }
                chosen = Some(list);
            }
        }
        let lacking: Vec<&str> = self
            .others
            .into_iter()
            .filter(|(_, word)| promised(word).is_none() || promised(word) != chosen)
            .map(|(place, _)| PLACES[place])
            .collect();
        let text = format!(
            "propose {} a{} b{} c{} to {}",
            chosen.map_or(6, |(id, _)| id),
            ids[0],
            ids[1],
            ids[2],
            lacking.join(",")
        );
        text.trim_end().to_owned()
    }
}
