//! Asks a node's /readyz until it says yes. One line of HTTP/1.1 is all that takes.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PERIOD: Duration = Duration::from_millis(100);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns once the node at this HTTP address is ready.
pub async fn wait(http: SocketAddr) {
    while !matches!(tokio::time::timeout(ANSWER_TIMEOUT, is_ready(http)).await, Ok(Ok(true))) {
        tokio::time::sleep(PERIOD).await;
    }
}

async fn is_ready(http: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect(http).await?;
    stream.write_all(format!("GET /readyz HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    let mut status = [0; "HTTP/1.1 200".len()];
    stream.read_exact(&mut status).await?;
    Ok(status.starts_with(b"HTTP/1.") && status.ends_with(b" 200"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn anything_but_200_means_not_yet() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = async {
            for answer in
                ["HTTP/1.1 503 Service Unavailable\r\n\r\n", "", "nonsense nonsense", "HTTP/1.1 200 OK\r\n\r\n"]
            {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 256]).await;
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        };
        tokio::join!(wait(address), server);
    }
}
