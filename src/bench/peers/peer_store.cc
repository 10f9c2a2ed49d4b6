#include "bench/peers/peer_store.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "bench/peers/bench_memory.h"
#include "cli/unix_connection.h"

namespace aquifer {

// The protocols are text around the bytes, and every length is known before: an answer is read in
// one piece, the texts to one side and the blocks to their places, and the texts are compared.
struct PeerDialect {
  std::string_view name;
  std::vector<std::string> (*command)(const std::string& socket, const PeerStore::Options& options);
  std::string (*store)(const std::string& key, uint64_t bytes);  // Before the block,
  std::string_view store_end;                                    // and behind it.
  std::string_view stored;
  std::string (*get)(std::span<const std::string> keys);
  std::string (*value)(const std::string& key, uint64_t bytes);  // Before each block of an answer,
  std::string_view value_end;                                    // behind it,
  std::string_view values_end;                                   // and behind the last.
};

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr size_t kBatchBlocks = 64;

// All keys are of one length.
std::string KeyOf(size_t block) { return fmt::format("block{:08}", block); }

Status Failed(std::string_view what, int error) {
  return Status(Code::kUnavailable, fmt::format("{}: {}", what, std::strerror(error)));
}

iovec PieceOf(std::span<std::byte> bytes) {
  return {.iov_base = bytes.data(), .iov_len = bytes.size()};
}
iovec PieceOf(std::string& text) { return {.iov_base = text.data(), .iov_len = text.size()}; }

// Takes the bytes that were moved off the front.
void Advance(std::span<iovec>* pieces, size_t bytes) {
  while (!pieces->empty() && bytes >= pieces->front().iov_len) {
    bytes -= pieces->front().iov_len;
    *pieces = pieces->subspan(1);
  }
  if (bytes == 0) return;
  pieces->front().iov_base = static_cast<std::byte*>(pieces->front().iov_base) + bytes;
  pieces->front().iov_len -= bytes;
}

// Sends or receives all of the pieces.
template <class Move>
Status MoveAll(const Descriptor& socket, std::span<iovec> pieces, Move move, int flags) {
  while (!pieces.empty()) {
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    const ssize_t moved = move(socket.get(), &message, flags);
    if (moved == 0) return Status(Code::kUnavailable, "the server has hung up");
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return Failed("socket", errno);
    Advance(&pieces, static_cast<size_t>(moved));
  }
  return Status();
}

Status Send(const Descriptor& socket, std::span<iovec> pieces) {
  return MoveAll(socket, pieces, ::sendmsg, MSG_NOSIGNAL);
}
Status Receive(const Descriptor& socket, std::span<iovec> pieces) {
  return MoveAll(socket, pieces, ::recvmsg, MSG_WAITALL);
}

// Twice the blocks: both waste some.
uint64_t RoomMiB(const PeerStore::Options& options) {
  return 2 * options.memory.size() / kMiB + 64;
}

std::string RedisGet(std::span<const std::string> keys) {
  std::string text;
  for (const std::string& key : keys) {
    text += fmt::format("*2\r\n$3\r\nGET\r\n${}\r\n{}\r\n", key.size(), key);
  }
  return text;
}

std::vector<std::string> MemcachedCommand(const std::string& socket,
                                          const PeerStore::Options& options) {
  std::vector<std::string> words = {"memcached",
                                    "-s",
                                    socket,
                                    "-m",
                                    std::to_string(RoomMiB(options)),
                                    "-I",
                                    fmt::format("{}m", options.block_bytes / kMiB + 1)};
  if (::geteuid() == 0) words.insert(words.end(), {"-u", "root"});  // It refuses otherwise.
  return words;
}

}  // namespace

const PeerDialect kRedisDialect = {
    .name = "redis",
    .command =
        [](const std::string& socket, const PeerStore::Options& options) {
          return std::vector<std::string>{"redis-server",
                                          "--port",
                                          "0",
                                          "--unixsocket",
                                          socket,
                                          "--save",
                                          "",
                                          "--appendonly",
                                          "no",
                                          "--maxmemory",
                                          fmt::format("{}mb", RoomMiB(options)),
                                          "--maxmemory-policy",
                                          "noeviction"};
        },
    .store =
        [](const std::string& key, uint64_t bytes) {
          return fmt::format("*3\r\n$3\r\nSET\r\n${}\r\n{}\r\n${}\r\n", key.size(), key, bytes);
        },
    .store_end = "\r\n",
    .stored = "+OK\r\n",
    .get = RedisGet,
    .value = [](const std::string& /*key*/,
                uint64_t bytes) { return fmt::format("${}\r\n", bytes); },
    .value_end = "\r\n",
    .values_end = ""};

const PeerDialect kMemcachedDialect = {
    .name = "memcached",
    .command = MemcachedCommand,
    .store = [](const std::string& key,
                uint64_t bytes) { return fmt::format("set {} 0 0 {}\r\n", key, bytes); },
    .store_end = "\r\n",
    .stored = "STORED\r\n",
    .get =
        [](std::span<const std::string> keys) {
          return fmt::format("get {}\r\n", fmt::join(keys, " "));
        },
    .value = [](const std::string& key,
                uint64_t bytes) { return fmt::format("VALUE {} 0 {}\r\n", key, bytes); },
    .value_end = "\r\n",
    .values_end = "END\r\n"};

std::string_view PeerStore::NameOf(const PeerDialect& dialect) { return dialect.name; }

Result<std::unique_ptr<MeasuredPeer>> PeerStore::New(const PeerDialect& dialect,
                                                     const Options& options) {
  std::unique_ptr<PeerStore> store(new PeerStore(dialect, options));
  AQ_RETURN_IF_ERROR(store->Start());
  for (size_t block = 0; block < store->blocks(); ++block) {
    AQ_RETURN_IF_ERROR(store->Store(block));
  }
  return std::unique_ptr<MeasuredPeer>(std::move(store));
}

Status PeerStore::Start() {
  AQ_ASSIGN_OR_RETURN(server_, ServerProcess::Start([this](const std::string& directory) {
                        return dialect_.command(directory + "/socket", options_);
                      }));
  return server_->Await([this]() -> Status {
    AQ_ASSIGN_OR_RETURN(socket_, ConnectToUnixSocket(server_->directory() + "/socket"));
    return Status();
  });
}

Status PeerStore::Store(size_t block) {
  std::string head = dialect_.store(KeyOf(block), options_.block_bytes);
  std::string end(dialect_.store_end);
  iovec sent[] = {PieceOf(head), PieceOf(Place(block)), PieceOf(end)};
  AQ_RETURN_IF_ERROR(Send(socket_, sent));
  std::string answer(dialect_.stored.size(), '\0');
  iovec received[] = {PieceOf(answer)};
  AQ_RETURN_IF_ERROR(Receive(socket_, received));
  if (answer == dialect_.stored) return Status();
  return Status(Code::kUnavailable, fmt::format("it does not store a block: {}", answer));
}

Result<double> PeerStore::Get() {
  AQ_ASSIGN_OR_RETURN(const double one_by_one, GetInBatches(1));
  AQ_ASSIGN_OR_RETURN(const double ahead, GetInBatches(kBatchBlocks));
  return std::max(one_by_one, ahead);
}

Result<double> PeerStore::GetInBatches(size_t batch_blocks) {
  const Stopwatch watch;
  for (size_t first = 0; first < blocks(); first += batch_blocks) {
    AQ_RETURN_IF_ERROR(GetBatch(first, std::min(batch_blocks, blocks() - first)));
  }
  return GigabytesPerSecond(options_.memory.size(), watch.Seconds());
}

Status PeerStore::GetBatch(size_t first, size_t count) {
  std::vector<std::string> keys;
  std::string expected;
  for (size_t block = first; block < first + count; ++block) {
    expected += dialect_.value(keys.emplace_back(KeyOf(block)), options_.block_bytes);
    expected += dialect_.value_end;
  }
  expected += dialect_.values_end;
  std::string texts(expected.size(), '\0');
  std::vector<iovec> pieces;
  size_t at = 0;
  const auto add_text = [&](size_t length) {
    if (length > 0) pieces.push_back({.iov_base = texts.data() + at, .iov_len = length});
    at += length;
  };
  for (size_t i = 0; i < count; ++i) {
    add_text(dialect_.value(keys[i], options_.block_bytes).size());
    pieces.push_back(PieceOf(Place(first + i)));
    add_text(dialect_.value_end.size());
  }
  add_text(dialect_.values_end.size());

  std::string asked = dialect_.get(keys);
  iovec sent[] = {PieceOf(asked)};
  AQ_RETURN_IF_ERROR(Send(socket_, sent));
  AQ_RETURN_IF_ERROR(Receive(socket_, pieces));
  if (texts == expected) return Status();
  return Status(Code::kUnavailable, "its answer is not the blocks that were asked for");
}

}  // namespace aquifer
