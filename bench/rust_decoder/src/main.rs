//! Reads a server's log as a replica and decodes every row with the crate `mysql`.
//! JSON becomes text, as everywhere else; until then the crate has only looked at its first bytes.
//! Arguments: port, file, position, rows to stop at. Prints rows, wall and CPU seconds.
use mysql::binlog::events::EventData;
use mysql::{BinlogDumpFlags, BinlogRequest, Conn, OptsBuilder};
use mysql::binlog::row::BinlogRow;
use mysql::binlog::value::BinlogValue;
use mysql::Value;
use std::convert::TryFrom;
use std::hint::black_box;
use std::time::Instant;

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// How many values a row has. The crate made them while it read the row, so that they are only looked at here; but for
/// JSON, which is still in the server's form and becomes text.
fn decoded(row: Option<BinlogRow>) -> Result<usize, Box<dyn std::error::Error>> {
    let Some(mut row) = row else { return Ok(0) };
    let mut values = 0;
    for column in 0..row.len() {
        let later = match row.as_ref(column) {
            None => continue,
            Some(BinlogValue::Value(value)) => {
                black_box(value);
                None
            }
            Some(_) => row.take(column),
        };
        if let Some(value) = later {
            black_box(Value::try_from(value)?);
        }
        values += 1;
    }
    Ok(values)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let options = OptsBuilder::new()
        .ip_or_hostname(Some("127.0.0.1"))
        .tcp_port(arguments[1].parse()?)
        .user(Some("root"))
        .pass(Some("root"));
    let request = BinlogRequest::new(7103)
        .with_flags(BinlogDumpFlags::BINLOG_DUMP_NON_BLOCK)
        .with_filename(arguments[2].as_bytes())
        .with_pos(arguments[3].parse::<u64>()?);
    let wanted: u64 = arguments[4].parse()?;
    let (wall, cpu) = (Instant::now(), cpu_seconds());
    let mut stream = Conn::new(options)?.get_binlog_stream(request)?;
    let (mut rows, mut values) = (0u64, 0usize);
    while let Some(event) = stream.next() {
        let event = event?;
        if let Some(EventData::RowsEvent(data)) = event.read_data()? {
            let table = stream.get_tme(data.table_id()).ok_or("no table map")?;
            for row in data.rows(table) {
                let (before, after) = row?;
                values += decoded(before)? + decoded(after)?;
                rows += 1;
            }
            if rows >= wanted {
                break;
            }
        }
    }
    println!("{rows} {values} {} {}", wall.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    Ok(())
}
