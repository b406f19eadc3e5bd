//! `strftime` for the few dates that templates print. UTC: a prompt does not depend on the machine's zone.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Year, month 1..=12, day 1..=31 of a day number (0 = 1970-01-01).
/// Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Formats a time.
///
/// # Errors
/// A directive that is not known.
pub(super) fn strftime(format: &str, now: SystemTime) -> Result<String, String> {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let days = seconds.div_euclid(86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = civil(days);
    let month_name = MONTHS[(month - 1) as usize];
    let day_name = DAYS[days.rem_euclid(7) as usize];
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let bare = directive == Some('-');
        if bare {
            directive = chars.next();
        }
        let mut padded = |value: i64, width: usize| {
            out.push_str(&if bare { value.to_string() } else { format!("{value:0width$}") });
        };
        match directive {
            Some('Y') => padded(year, 4),
            Some('y') => padded(year % 100, 2),
            Some('m') => padded(month, 2),
            Some('d') => padded(day, 2),
            Some('H') => padded(hour, 2),
            Some('I') => padded(hour12, 2),
            Some('M') => padded(minute, 2),
            Some('S') => padded(second, 2),
            Some('j') => {
                let first = (0..366).find(|back| civil(days - back).1 == 1 && civil(days - back).2 == 1);
                padded(first.unwrap_or(0) + 1, 3);
            }
            Some('e') => out.push_str(&format!("{day:2}")),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('F') => out.push_str(&format!("{year:04}-{month:02}-{day:02}")),
            Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('%') => out.push('%'),
            Some(other) => return Err(format!("strftime_now: %{other} is not supported")),
            None => return Err("strftime_now: % at the end of the format".to_owned()),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_of_known_seconds() {
        let at = |s: u64, f: &str| strftime(f, UNIX_EPOCH + Duration::from_secs(s)).unwrap();
        assert_eq!(at(0, "%Y-%m-%d %H:%M:%S %A %j"), "1970-01-01 00:00:00 Thursday 001");
        assert_eq!(at(951_827_696, "%d %b %Y %a %I%p %-d %e %y"), "29 Feb 2000 Tue 12PM 29 29 00");
        assert_eq!(at(1_735_689_599, "%F %T %j %B"), "2024-12-31 23:59:59 366 December");
        assert_eq!(at(1_709_510_400, "%-d/%-m %% %Z%z"), "4/3 % UTC+0000");
        assert!(strftime("%Q", UNIX_EPOCH).unwrap_err().contains("%Q"));
        assert!(strftime("x%", UNIX_EPOCH).is_err());
    }
}
