#include "node/local/connection.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/request_progress.h"

namespace aquifer {
namespace {

// What one turn does at most: about 50 us of work.
constexpr size_t kItemsPerTurn = 256;
constexpr uint32_t kOffersPerTurn = 8;  // A system call each.
constexpr size_t kReturnsPerTurn = 16;  // Extents, which may be closed with it.
constexpr size_t kForgetsPerTurn = 1024;
// More than this is freed by a worker.
constexpr size_t kLargeRequest = 1024;
constexpr size_t kBytesPerEntry = 16;  // The smallest thing that a frame is full of.
constexpr int64_t kFlushLaterNanos = 10'000'000;

std::string_view Shortened(std::string_view message) { return message.substr(0, kMaxMessageBytes); }

}  // namespace

Connection::Connection(FrameSocket socket, Descriptor process, const PeerCredentials& peer,
                       const ConnectionLimits& limits, Host* host)
    : limits_(limits),
      host_(host),
      socket_(std::move(socket)),
      peer_(peer),
      process_(std::move(process)) {}

Status Connection::Begin() {
  AQ_ASSIGN_OR_RETURN(process_watch_,
                      host_->waiter()->Watch(process_.get(), EPOLLIN, [this](uint32_t) {
                        goodbye_ = true;  // Nothing of it runs any more.
                        End("its process has ended");
                      }));
  AQ_ASSIGN_OR_RETURN(socket_watch_,
                      host_->waiter()->Watch(socket_.descriptor(), EPOLLIN | EPOLLRDHUP,
                                             [this](uint32_t events) { OnSocket(events); }));
  host_->owner()->PostAt(host_->clock()->NowNanos() + limits_.greeting_nanos,
                         [this, alive = alive_] {
                           if (*alive && state_ == State::kGreeting) Break("it never said hello");
                         });
  return Status();
}

Connection::~Connection() {
  *alive_ = false;
  if (state_ == State::kOpen) host_->waiter()->Remove(this);
  for (const uint64_t watch : {socket_watch_, process_watch_, event_watch_}) {
    host_->waiter()->Unwatch(watch);
  }
  host_->RemoveItems(*this, items_);
  FrameSocket::Discard(std::move(socket_), host_->closing());
}

// ---- The socket ----

// After the hello nothing is received: it could only be descriptors that are ours to close then.
void Connection::OnSocket(uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    if (!socket_.Flush().ok()) return OnHungUp();
    WatchWrites();
  }
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0) return;
  if (state_ == State::kGreeting) return OnGreeting();
  switch (socket_.Look()) {
    case FrameSocket::News::kNone:
      return;
    case FrameSocket::News::kEnd:
      return OnHungUp();
    case FrameSocket::News::kBytes:
      Break("something on the socket after the hello");
  }
}

void Connection::OnGreeting() {
  const Status status = socket_.Receive(&frame_, /*with_descriptors=*/false);
  if (status.code() == Code::kNotFound) return;
  if (status.code() == Code::kUnavailable) return OnHungUp();
  if (!status.ok()) return Break(status.message());
  FrameReader reader(frame_);
  Hello hello;
  if (reader.header().kind != static_cast<uint16_t>(FrameKind::kHello)) {
    return Break("something else than a hello");
  }
  if (const Status decoded = Decode(&reader, &hello); !decoded.ok()) {
    return Break(decoded.message());
  }
  if (socket_.bytes_left() > 0) return Break("something on the socket after the hello");
  Greet(hello);
}

void Connection::Greet(const Hello& hello) {
  version_ = std::min(hello.newest_version, kLocalVersion);
  if (version_ < std::max(hello.oldest_version, kOldestLocalVersion)) {
    return Refuse(Status(Code::kInvalid, "this node speaks versions " +
                                             std::to_string(kOldestLocalVersion) + " to " +
                                             std::to_string(kLocalVersion) +
                                             " of the local protocol; the client does not"));
  }
  Result<Admission> admission = host_->Admit(hello, peer_);
  if (!admission.ok()) return Refuse(admission.status());
  admission_ = *std::move(admission);
  observe_ = hello.observe;
  recorded_as_ =
      RecordedClientOf(admission_.client.tenant, admission_.client.engine, SystemRandom());
  if (const Status made = MakeRings(); !made.ok()) return Refuse(made);
  state_ = State::kOpen;
  host_->waiter()->Add(this);
  host_->OnOpened(this);
  writer_.Begin(static_cast<uint16_t>(FrameKind::kWelcome), 0);
  Encode(Welcome{.version = version_,
                 .max_requests = limits_.max_requests,
                 .ring_data_bytes = limits_.ring_data_bytes},
         &writer_);
  const int descriptors[] = {to_node_memory_.descriptor(), to_client_memory_.descriptor(),
                             wake_node_.get(), client_wakes_.get()};
  Send(writer_.Finish(), descriptors);
}

void Connection::Refuse(const Status& status) {
  writer_.Begin(static_cast<uint16_t>(FrameKind::kRefused), 0);
  Encode(Refused{.code = status.code(), .message = Shortened(status.message())}, &writer_);
  Send(writer_.Finish());
  hostile_ = true;
  End(status.message());
}

Status Connection::MakeRings() {
  for (SharedMemory* const memory : {&to_node_memory_, &to_client_memory_}) {
    AQ_ASSIGN_OR_RETURN(*memory, SharedMemory::New(RingBytes(limits_.ring_data_bytes)));
    FormatRing(memory->bytes(), limits_.ring_data_bytes);
  }
  wake_node_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  int ends[2] = {-1, -1};
  if (!wake_node_.valid() ||
      ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return Status(Code::kUnavailable, "the node has no descriptors left");
  }
  wake_client_ = Descriptor(ends[0]);
  client_wakes_ = Descriptor(ends[1]);
  if (::shutdown(wake_client_.get(), SHUT_RD) != 0) return Status(Code::kUnavailable, "shutdown");
  AQ_ASSIGN_OR_RETURN(event_watch_, host_->waiter()->Watch(wake_node_.get(), EPOLLIN | EPOLLET,
                                                           [this](uint32_t) { Linger(); }));
  requests_from_ = std::make_unique<RingReader>(to_node_memory_.bytes());
  answers_to_ = std::make_unique<RingWriter>(to_client_memory_.bytes());
  AQ_ASSIGN_OR_RETURN(client_,
                      host_->core()->Attach(admission_.client, this, admission_.may_drain));
  return Status();
}

void Connection::Send(std::span<const std::byte> frame, std::span<const int> descriptors) {
  if (hung_up_ || socket_watch_ == 0) return;
  if (!socket_.Send(frame, descriptors).ok()) return OnHungUp();
  if (socket_.unsent_frames() > limits_.max_unsent_frames) {
    return Break("it does not read its socket");
  }
  WatchWrites();
}

void Connection::WatchWrites() {
  if (socket_.too_many_descriptors()) FlushLater();
  const bool writes = socket_.unsent_frames() > 0 && !socket_.too_many_descriptors();
  host_->waiter()->Change(socket_watch_, EPOLLIN | EPOLLRDHUP | (writes ? uint32_t{EPOLLOUT} : 0));
}

// Too many descriptors are on their way to this user's processes. The socket does not tell when
// some were taken.
void Connection::FlushLater() {
  if (std::exchange(flushing_later_, true)) return;
  host_->owner()->PostAt(host_->clock()->NowNanos() + kFlushLaterNanos, [this, alive = alive_] {
    if (!*alive) return;
    flushing_later_ = false;
    if (socket_watch_ != 0) OnSocket(EPOLLOUT);
  });
}

void Connection::StopWatchingSocket() { host_->waiter()->Unwatch(std::exchange(socket_watch_, 0)); }

// What it wrote before is still heard, in its turn: it may have given things back.
void Connection::OnHungUp() {
  hung_up_ = true;
  StopWatchingSocket();
  if (state_ != State::kOpen) End("the client closed the connection");
}

// ---- Requests ----

bool Connection::Poll() {
  if (ReturnSome() || ForgetSome()) return true;
  if (hostile_) return false;
  if (TellWaiting()) return true;
  if (ReadOne()) {
    if (requests_from_->MustWake()) WakeClient();
    return true;
  }
  if (!hung_up_ || hostile_ || state_ != State::kOpen) return false;
  End("the client closed the connection");
  return true;
}

bool Connection::PrepareToSleep() {
  if (!releases_.empty() || !aborts_.empty() || !ending_.empty()) return false;
  if (hostile_) return true;
  if (hung_up_ && state_ == State::kOpen) return false;
  if (!waiting_.empty() && !answers_to_->PrepareToSleep(kMaxFrameBytes)) return false;
  return requests_from_->PrepareToSleep();
}

// Nobody polls a connection that has ended; it hears when it is woken.
void Connection::Linger() {
  if (state_ != State::kLingering || lingering_later_ || (!Poll() && PrepareToSleep())) return;
  lingering_later_ = true;
  host_->owner()->Post([this, alive = alive_] {
    if (!*alive) return;
    lingering_later_ = false;
    Linger();
  });
}

// A frame, if there is one and it makes sense.
bool Connection::ReadOne() {
  const Status status = requests_from_->Read(&frame_);
  if (status.code() == Code::kNotFound) return false;
  if (!status.ok()) return Break(status.message()), false;
  host_->meter()->Count(frame_.size() / kBytesPerEntry);
  FrameReader reader(frame_);
  const Status handled = state_ == State::kOpen ? Handle(&reader) : HandleWhileLingering(&reader);
  if (!handled.ok()) Break(handled.message());
  return true;
}

Status Connection::Handle(FrameReader* frame) {
  switch (static_cast<FrameKind>(frame->header().kind)) {
    case FrameKind::kMore:
      return ContinueRequest(frame);
    case FrameKind::kCancel: {
      AQ_RETURN_IF_ERROR(frame->End());
      const auto found = open_.find(frame->header().number);  // It may just have been answered.
      if (found != open_.end() && found->second->submitted && !found->second->done) {
        host_->core()->Cancel(client_, found->second->request());
      }
      return Status();
    }
    case FrameKind::kHint: {
      HintCall call;
      AQ_RETURN_IF_ERROR(Decode(frame, version_, &call));
      SessionForecast forecast{.session = std::string(call.session),
                               .state = call.state,
                               .priority = call.priority,
                               .ttl_seconds = call.ttl_seconds,
                               .durability = call.durability,
                               .return_seconds = call.return_seconds};
      forecast.chain.layout = call.layout;
      forecast.chain.group = call.group;
      forecast.chain.part = call.part;
      if (!observe_) host_->core()->Hint(client_, forecast, call.head);
      return Status();
    }
    case FrameKind::kReportPrefill: {
      PrefillReport report;
      AQ_RETURN_IF_ERROR(Decode(frame, &report));
      host_->core()->ReportPrefill(client_, report);
      return Status();
    }
    case FrameKind::kRelease:
    case FrameKind::kAbort:
    case FrameKind::kExtentReturned:
    case FrameKind::kGoodbye:
      return HandleWhileLingering(frame);
    default:
      return BeginRequest(frame);
  }
}

// What is given back is always welcome; all else comes too late.
Status Connection::HandleWhileLingering(FrameReader* frame) {
  switch (static_cast<FrameKind>(frame->header().kind)) {
    case FrameKind::kRelease:
      AQ_RETURN_IF_ERROR(Decode(frame, &releases_));
      ReturnSome();
      return Status();
    case FrameKind::kAbort:
      AQ_RETURN_IF_ERROR(Decode(frame, &aborts_));
      ReturnSome();
      return Status();
    case FrameKind::kExtentReturned: {
      uint32_t extent = 0;
      AQ_RETURN_IF_ERROR(DecodeExtent(frame, &extent));
      const auto found = offered_.find(extent);
      if (found == offered_.end() || found->second > socket_.sent_frames()) {
        return Status(Code::kInvalid, "an extent returned that it does not have");
      }
      offered_.erase(found);
      host_->core()->ReturnExtent(extent);
      return Status();
    }
    case FrameKind::kGoodbye:
      AQ_RETURN_IF_ERROR(frame->End());
      goodbye_ = true;
      // A connection that has ended already was cut off: its goodbye comes too late to change that.
      said_goodbye_ = state_ == State::kOpen;
      End("the client said goodbye");
      return Status();
    default:
      return Status();
  }
}

// What is refused is refused before anything of it is kept.
Status Connection::BeginRequest(FrameReader* frame) {
  const auto kind = static_cast<FrameKind>(frame->header().kind);
  const uint64_t number = frame->header().number;
  std::unique_ptr<OpenRequest> fresh = OpenRequest::New(kind);
  if (fresh == nullptr) return Status(Code::kInvalid, "a kind of frame that there is not");
  if (open_.contains(number)) {
    return Status(Code::kInvalid, "the number of a request that is still open");
  }
  // One that is refused costs a name until its last frame; a client that sends ever more of them is
  // no client.
  if (open_.size() >= size_t{2} * limits_.max_requests) {
    return Status(Code::kInvalid, "far more requests than it may have open");
  }
  const bool forbidden = kind == FrameKind::kDrain && !admission_.may_drain;
  fresh->refused = forbidden || open_.size() >= limits_.max_requests;
  AQ_RETURN_IF_ERROR(
      fresh->Begin(frame, std::min(limits_.max_items - items_, host_->ItemsLeft(*this))));
  fresh->number = number;
  fresh->begun_nanos = host_->clock()->NowNanos();
  if (forbidden) {
    fresh->request()->status =
        Status(Code::kInvalid, "only the node's administrator can drain it: aquifer ctl drain");
  } else if (fresh->refused) {
    fresh->request()->status = Status(Code::kBusy, "too many requests under way; wait for some");
  } else {
    items_ += fresh->announced();
    host_->AddItems(*this, fresh->announced());
  }
  OpenRequest* const open = fresh.get();
  by_request_[open->request()] = open;
  open_.emplace(number, std::move(fresh));
  if (open->complete()) {
    Submit(open);
  } else {
    AwaitRest();
  }
  return Status();
}

// What has come of a request is kept for it, but not for ever: one timer for all of them.
void Connection::AwaitRest() {
  if (std::exchange(awaiting_rest_, true)) return;
  const int64_t at = host_->clock()->NowNanos() + limits_.arrival_nanos;
  host_->owner()->PostAt(at, [this, alive = alive_] {
    if (!*alive || state_ != State::kOpen) return;
    awaiting_rest_ = false;
    const int64_t begun_by = host_->clock()->NowNanos() - limits_.arrival_nanos;
    bool more = false;
    for (const auto& [number, open] : open_) {
      if (open->complete()) continue;
      if (open->begun_nanos <= begun_by) return Break("a request whose end does not come");
      more = true;
    }
    if (more) AwaitRest();
  });
}

Status Connection::ContinueRequest(FrameReader* frame) {
  const auto found = open_.find(frame->header().number);
  if (found == open_.end() || found->second->submitted || found->second->complete()) {
    return Status(Code::kInvalid, "more of a request that is not open");
  }
  OpenRequest* const open = found->second.get();
  const size_t before = open->arrived();
  AQ_RETURN_IF_ERROR(open->More(frame));
  if (open->arrived() == before) return Status(Code::kInvalid, "more, and nothing in it");
  if (open->complete()) Submit(open);
  return Status();
}

void Connection::Submit(OpenRequest* open) {
  open->submitted = true;
  if (!observe_ && open->announces_stores()) host_->core()->WarmUp();
  if (!open->refused && (!observe_ || open->for_observers())) {
    return open->Submit(host_->core(), client_);
  }
  if (!open->refused) open->AnswerObserver();
  open->done = true;
  Tell(open);
}

bool Connection::ReturnSome() {
  if (releases_.empty() && aborts_.empty()) return false;
  Core* const core = host_->core();
  released_ += core->Release(client_, std::span(releases_).subspan(released_));
  aborted_ += core->Abort(client_, std::span(aborts_).subspan(aborted_));
  if (released_ == releases_.size()) {
    releases_.clear();
    released_ = 0;
  }
  if (aborted_ == aborts_.size()) {
    aborts_.clear();
    aborted_ = 0;
  }
  return true;
}

// What was lent by requests that the client never heard of.
bool Connection::ForgetSome() {
  if (ending_.empty()) return false;
  const auto first = ending_.begin();
  OpenRequest* const open = first->second.get();
  const size_t lending = open->submitted ? open->lending() : 0;
  if (open->told < lending) {
    const size_t count = std::min(lending - open->told, kForgetsPerTurn);
    Undelivered left;
    open->Forget(open->told, count, &left);
    open->told += count;
    host_->meter()->Count(count);
    releases_ = std::move(left.leases);
    aborts_ = std::move(left.reservations);
    return true;
  }
  std::unique_ptr<OpenRequest> done = std::move(first->second);
  ending_.erase(first);
  Free(std::move(done));
  return true;
}

// What nobody needs any more is given away, so that it costs the owner nothing.
void Connection::Record(OpenRequest* open) {
  Recorder* const recorder = host_->recorder();
  if (recorder == nullptr || !recorder->wanted()) return;
  LayoutHandle layout = 0;
  RecordedCall call = open->TakeRecorded(&layout);
  call.client = recorded_as_;
  call.tokens_per_block = host_->core()->TokensPerBlock(client_, layout);
  if (!call.keys.empty() && call.tokens_per_block != 0) recorder->Record(std::move(call));
}

// ---- Answers ----

void Connection::OnProgress(Request* request, size_t completed, bool done) {
  OpenRequest* const open = by_request_.at(request);
  open->done = done;
  open->ready = open->items(completed, done);
  if (!open->waiting) Tell(open);
}

bool Connection::CanLocate(uint64_t loan, bool reservation) {
  const SlotPlace place = host_->core()->PlaceOf(client_, loan, reservation);
  if (place.extent == 0 || offered_.contains(place.extent)) return true;
  if (offers_left_ == 0) return false;
  --offers_left_;
  const ExtentInfo extent = host_->core()->OfferExtent(place.extent);
  FrameWriter offer;
  offer.Begin(static_cast<uint16_t>(FrameKind::kExtent), 0);
  Encode(ExtentOffer{.extent = extent.extent, .bytes = extent.bytes}, &offer);
  Send(offer.Finish(), std::span(&extent.descriptor, 1));
  offered_[place.extent] = socket_.sent_frames() + socket_.unsent_frames();
  return true;
}

LentSlot Connection::Locate(uint64_t loan, bool reservation, uint64_t bytes) {
  const SlotPlace place = host_->core()->PlaceOf(client_, loan, reservation);
  if (place.extent == 0) return {};
  return {.extent = place.extent, .offset = place.offset, .bytes = bytes};
}

bool Connection::Holds(uint64_t loan, bool reservation) {
  return host_->core()->PlaceOf(client_, loan, reservation).extent != 0;
}

void Connection::Tell(OpenRequest* open) {
  if (state_ != State::kOpen || hostile_) return;
  if (open->told == open->ready && !open->done) return;
  if (!answers_to_->HasRoom(kMaxFrameBytes)) {
    if (answers_to_->broken()) return Break("it left its ring in a state that cannot be");
    return Wait(open);
  }
  offers_left_ = kOffersPerTurn;
  const size_t most = std::min(open->ready - open->told, kItemsPerTurn);
  const size_t count = open->CanTell(open->told, most, this);
  const bool last = open->done && open->told + count == open->ready;
  WriteAnswer(open, count, last);
  open->told += count;
  host_->meter()->Count(count);
  if (answers_to_->MustWake()) WakeClient();
  if (last) return Finish(open);
  if (open->told < open->ready || open->done) Wait(open);
}

void Connection::WriteAnswer(OpenRequest* open, size_t count, bool last) {
  const Status& status = open->request()->status;
  writer_.Begin(static_cast<uint16_t>(FrameKind::kAnswer), open->number);
  Encode(AnswerHead{.done = last,
                    .code = last ? status.code() : Code::kOk,
                    .message = last ? Shortened(status.message()) : std::string_view(),
                    .first = static_cast<uint32_t>(open->told),
                    .count = static_cast<uint32_t>(count)},
         &writer_);
  if (last) open->EncodeSummary(&writer_);
  open->EncodeItems(open->told, count, this, &writer_);
  // There was room for the largest frame; the client may have broken its ring since.
  if (const Status written = answers_to_->Write(writer_.Finish()); !written.ok()) {
    Break("it left its ring in a state that cannot be");
  }
}

void Connection::Wait(OpenRequest* open) {
  open->waiting = true;
  waiting_.push_back(open);
}

void Connection::Finish(OpenRequest* open) {
  Record(open);
  by_request_.erase(open->request());
  const auto found = open_.find(open->number);
  std::unique_ptr<OpenRequest> done = std::move(found->second);
  open_.erase(found);
  Free(std::move(done));
}

void Connection::Free(std::unique_ptr<OpenRequest> request) {
  if (!request->refused) {
    items_ -= request->announced();
    host_->RemoveItems(*this, request->announced());
  }
  if (request->refused || request->announced() <= kLargeRequest) return;
  host_->workers()->Run([freed = std::shared_ptr<OpenRequest>(std::move(request))] {});
}

bool Connection::TellWaiting() {
  if (waiting_.empty() || state_ != State::kOpen) return false;
  if (!answers_to_->HasRoom(kMaxFrameBytes) && !answers_to_->broken()) return false;
  OpenRequest* const open = waiting_.front();
  waiting_.pop_front();
  open->waiting = false;
  Tell(open);
  return true;
}

void Connection::WakeClient() {
  const std::byte any{};
  // When there is no room for it, there is enough to wake the client.
  [[maybe_unused]] const ssize_t sent =
      ::send(wake_client_.get(), &any, sizeof(any), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void Connection::WantBack(uint32_t extent) {
  if (!offered_.contains(extent) || state_ != State::kOpen) return;
  writer_.Begin(static_cast<uint16_t>(FrameKind::kReturnExtent), 0);
  EncodeExtent(extent, &writer_);
  Send(writer_.Finish());
  host_->owner()->PostAt(host_->clock()->NowNanos() + limits_.return_nanos,
                         [this, extent, alive = alive_] {
                           if (!*alive || state_ != State::kOpen) return;
                           if (offered_.contains(extent)) CutOff("it keeps memory wanted back");
                         });
}

// ---- The end ----

void Connection::OnOverdue() {
  host_->owner()->Post([this, alive = alive_] {
    if (*alive) CutOff("it holds leases or reservations for longer than it may");
  });
}

void Connection::CutOff(const std::string& why) { End(why); }

// Not at once: the core may be in the middle of telling us something.
void Connection::Break(const std::string& why) {
  if (std::exchange(hostile_, true)) return;
  StopWatchingSocket();  // It may be ready for ever: nobody reads it any more.
  host_->owner()->Post([this, why, alive = alive_] {
    if (*alive) End(why);
  });
}

void Connection::End(const std::string& why) {
  if (state_ == State::kGone) return;
  if (state_ == State::kGreeting) goodbye_ = true;  // It was lent nothing.
  if (state_ == State::kOpen) {
    state_ = State::kLingering;
    host_->waiter()->Remove(this);
    host_->OnEnded(this, why);
    host_->core()->Disconnect(client_);
    // The client does not know of all that these were lent, so that it cannot give it back.
    ending_ = std::move(open_);
    open_.clear();
    by_request_.clear();
    waiting_.clear();
    socket_.EndSending();
  }
  // Who has hung up and has nothing of ours mapped says nothing more, and need not.
  if (hung_up_ && offered_.empty()) goodbye_ = true;
  if (goodbye_) return Leave();
  Linger();
}

void Connection::Leave() {
  const bool attached = state_ == State::kLingering;
  state_ = State::kGone;
  for (uint64_t* const watch : {&socket_watch_, &process_watch_, &event_watch_}) {
    host_->waiter()->Unwatch(std::exchange(*watch, 0));
  }
  if (!attached) return host_->OnGone(this);
  host_->RemoveItems(*this, std::exchange(items_, 0));
  if (!ending_.empty()) {
    host_->workers()->Run([freed = std::make_shared<Requests>(std::move(ending_))] {});
    ending_.clear();
  }
  host_->core()->Detach(client_, [this, alive = alive_] {
    if (*alive) ReturnExtents();
  });
}

void Connection::ReturnExtents() {
  for (size_t i = 0; i < kReturnsPerTurn && !offered_.empty(); ++i) {
    host_->core()->ReturnExtent(offered_.begin()->first);
    offered_.erase(offered_.begin());
  }
  if (offered_.empty()) return host_->OnGone(this);
  host_->owner()->Post([this, alive = alive_] {
    if (*alive) ReturnExtents();
  });
}

}  // namespace aquifer
