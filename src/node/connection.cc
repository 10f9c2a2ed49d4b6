#include "node/connection.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/request_progress.h"

namespace aquifer {
namespace {

constexpr int kFramesPerTurn = 8;

void Wake(const Descriptor& event) {
  const uint64_t one = 1;
  // A client may fill its own event up; it only hurts itself.
  [[maybe_unused]] const ssize_t written = ::write(event.get(), &one, sizeof(one));
}

void Clear(const Descriptor& event) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(event.get(), &count, sizeof(count));
}

std::string_view Shortened(std::string_view message) { return message.substr(0, kMaxMessageBytes); }

}  // namespace

Connection::Connection(FrameSocket socket, Descriptor process, const ConnectionLimits& limits,
                       Host* host)
    : limits_(limits), host_(host), socket_(std::move(socket)), process_(std::move(process)) {
  if (Result<PeerCredentials> peer = socket_.Peer(); peer.ok()) peer_ = *peer;
  socket_watch_ = host_->waiter()->Watch(socket_.descriptor(), EPOLLIN | EPOLLRDHUP,
                                         [this](uint32_t events) { OnSocket(events); });
  if (process_.valid()) {
    process_watch_ = host_->waiter()->Watch(process_.get(), EPOLLIN, [this](uint32_t) {
      goodbye_ = true;  // Nothing of it runs any more.
      End("its process has ended");
    });
  }
  host_->owner()->PostAt(host_->clock()->NowNanos() + limits_.greeting_nanos,
                         [this, alive = alive_] {
                           if (*alive && state_ == State::kGreeting) Break("it never said hello");
                         });
}

Connection::~Connection() {
  *alive_ = false;
  if (state_ == State::kOpen) host_->waiter()->Remove(this);
  for (const uint64_t watch : {socket_watch_, process_watch_, event_watch_}) {
    host_->waiter()->Unwatch(watch);
  }
}

// ---- The socket ----

void Connection::OnSocket(uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    if (!socket_.Flush().ok()) return OnHungUp();
    WatchWrites();
  }
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0) return;
  const Status status = socket_.Receive(&frame_, /*with_descriptors=*/false);
  if (status.code() == Code::kNotFound) return;
  if (status.code() == Code::kUnavailable) return OnHungUp();
  if (!status.ok()) return Break(status.message());
  if (state_ != State::kGreeting) return Break("something on the socket after the hello");
  FrameReader reader(frame_);
  Hello hello;
  if (reader.header().kind != static_cast<uint16_t>(FrameKind::kHello)) {
    return Break("something else than a hello");
  }
  if (const Status decoded = Decode(&reader, &hello); !decoded.ok()) {
    return Break(decoded.message());
  }
  Greet(hello);
}

void Connection::Greet(const Hello& hello) {
  const uint16_t version = std::min(hello.newest_version, kLocalVersion);
  if (version < std::max(hello.oldest_version, kOldestLocalVersion)) {
    return Refuse(Status(Code::kInvalid, "this node speaks versions " +
                                             std::to_string(kOldestLocalVersion) + " to " +
                                             std::to_string(kLocalVersion) +
                                             " of the local protocol; the client does not"));
  }
  const Result<Admission> admission = host_->Admit(hello, peer_);
  if (!admission.ok()) return Refuse(admission.status());
  observe_ = hello.observe;
  recorded_as_ =
      RecordedClientOf(admission->client.tenant, admission->client.engine, SystemRandom());
  may_drain_ = admission->may_drain;
  if (const Status made = MakeRings(*admission); !made.ok()) return Refuse(made);
  state_ = State::kOpen;
  host_->waiter()->Add(this);
  event_watch_ = host_->waiter()->Watch(wake_node_.get(), EPOLLIN, [this](uint32_t) {
    Clear(wake_node_);
    Linger();
  });
  writer_.Begin(static_cast<uint16_t>(FrameKind::kWelcome), 0);
  Encode(Welcome{.version = version,
                 .max_requests = limits_.max_requests,
                 .ring_data_bytes = limits_.ring_data_bytes},
         &writer_);
  const int descriptors[] = {to_node_memory_.descriptor(), to_client_memory_.descriptor(),
                             wake_node_.get(), wake_client_.get()};
  Send(writer_.Finish(), descriptors);
}

void Connection::Refuse(const Status& status) {
  writer_.Begin(static_cast<uint16_t>(FrameKind::kRefused), 0);
  Encode(Refused{.code = status.code(), .message = Shortened(status.message())}, &writer_);
  Send(writer_.Finish());
  hostile_ = true;
  End(status.message());
}

Status Connection::MakeRings(const Admission& admission) {
  for (SharedMemory* const memory : {&to_node_memory_, &to_client_memory_}) {
    AQ_ASSIGN_OR_RETURN(*memory, SharedMemory::New(RingBytes(limits_.ring_data_bytes)));
    FormatRing(memory->bytes(), limits_.ring_data_bytes);
  }
  wake_node_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  wake_client_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_node_.valid() || !wake_client_.valid()) {
    return Status(Code::kUnavailable, "the node has no descriptors left");
  }
  requests_from_ = std::make_unique<RingReader>(to_node_memory_.bytes());
  answers_to_ = std::make_unique<RingWriter>(to_client_memory_.bytes());
  AQ_ASSIGN_OR_RETURN(client_, host_->core()->Attach(admission.client, this));
  return Status();
}

void Connection::Send(std::span<const std::byte> frame, std::span<const int> descriptors) {
  if (hung_up_) return;
  if (!socket_.Send(frame, descriptors).ok()) return;  // OnSocket() hears of it too.
  if (socket_.unsent_frames() > limits_.max_unsent_frames) {
    return Break("it does not read its socket");
  }
  WatchWrites();
}

void Connection::WatchWrites() {
  const uint32_t writes = socket_.unsent_frames() > 0 ? uint32_t{EPOLLOUT} : 0;
  host_->waiter()->Change(socket_watch_, EPOLLIN | EPOLLRDHUP | writes);
}

// What it wrote before is still heard, in its turn: it may have given things back.
void Connection::OnHungUp() {
  hung_up_ = true;
  host_->waiter()->Unwatch(std::exchange(socket_watch_, 0));
  if (state_ != State::kOpen) End("the client closed the connection");
}

// ---- Requests ----

bool Connection::Poll() {
  bool any = ReturnSome();
  if (hostile_) return any;
  any |= TellWaiting();
  int read = 0;
  while (read < kFramesPerTurn && releases_.empty() && aborts_.empty() && ReadOne()) ++read;
  if (read > 0 && requests_from_->MustWake()) WakeClient();
  if (read == 0 && hung_up_ && state_ == State::kOpen) End("the client closed the connection");
  return any || read > 0;
}

bool Connection::PrepareToSleep() {
  if (!releases_.empty() || !aborts_.empty()) return false;
  if (hostile_) return true;
  if (hung_up_ && state_ == State::kOpen) return false;
  if (!waiting_.empty() && !answers_to_->PrepareToSleep(kMaxFrameBytes)) return false;
  return requests_from_->PrepareToSleep();
}

// Nobody polls a connection that has ended; it hears when it is woken.
void Connection::Linger() {
  if (state_ != State::kLingering || (!Poll() && PrepareToSleep())) return;
  host_->owner()->Post([this, alive = alive_] {
    if (*alive) Linger();
  });
}

// A frame, if there is one and it makes sense.
bool Connection::ReadOne() {
  const Status status = requests_from_->Read(&frame_);
  if (status.code() == Code::kNotFound) return false;
  if (!status.ok()) return Break(status.message()), false;
  FrameReader reader(frame_);
  const Status handled = state_ == State::kOpen ? Handle(&reader) : HandleWhileLingering(&reader);
  if (!handled.ok()) return Break(handled.message()), false;
  return state_ != State::kGone;
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
      AQ_RETURN_IF_ERROR(Decode(frame, &call));
      SessionForecast forecast{.session = std::string(call.session),
                               .state = call.state,
                               .priority = call.priority,
                               .ttl_seconds = call.ttl_seconds};
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
      if (offered_.erase(extent) == 0) {
        return Status(Code::kInvalid, "an extent returned that it does not have");
      }
      host_->core()->ReturnExtent(extent);
      return Status();
    }
    case FrameKind::kGoodbye:
      AQ_RETURN_IF_ERROR(frame->End());
      goodbye_ = true;
      End("the client said goodbye");
      return Status();
    default:
      return Status();
  }
}

Status Connection::BeginRequest(FrameReader* frame) {
  std::unique_ptr<OpenRequest> fresh =
      OpenRequest::New(static_cast<FrameKind>(frame->header().kind));
  if (fresh == nullptr) return Status(Code::kInvalid, "a kind of frame that there is not");
  AQ_RETURN_IF_ERROR(fresh->Begin(frame));
  fresh->number = frame->header().number;
  OpenRequest* const open = fresh.get();
  const auto [place, added] = open_.emplace(open->number, std::move(fresh));
  if (!added) return Status(Code::kInvalid, "the number of a request that is still open");
  by_request_[open->request()] = open;
  items_ += open->announced();
  const bool drain = frame->header().kind == static_cast<uint16_t>(FrameKind::kDrain);
  if (open_.size() > limits_.max_requests || items_ > limits_.max_items) {
    open->refused = true;
    open->request()->status = Status(Code::kBusy, "too many requests under way; wait for some");
  } else if (drain && !may_drain_) {
    open->refused = true;
    open->request()->status =
        Status(Code::kInvalid, "only the node's administrator can drain it: aquifer ctl drain");
  }
  // One that is refused costs a name until its last frame; a client that sends ever more of them is
  // no client.
  if (open_.size() > size_t{2} * limits_.max_requests) {
    return Status(Code::kInvalid, "far more requests than it may have open");
  }
  if (open->complete()) Submit(open);
  return Status();
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

LentSlot Connection::Locate(uint64_t loan, bool reservation, uint64_t bytes) {
  const SlotPlace place = host_->core()->PlaceOf(client_, loan, reservation);
  if (place.extent == 0) return {};
  if (offered_.insert(place.extent).second) {
    const ExtentInfo extent = host_->core()->OfferExtent(place.extent);
    FrameWriter offer;
    offer.Begin(static_cast<uint16_t>(FrameKind::kExtent), 0);
    Encode(ExtentOffer{.extent = extent.extent, .bytes = extent.bytes}, &offer);
    Send(offer.Finish(), std::span(&extent.descriptor, 1));
  }
  return {.extent = place.extent, .offset = place.offset, .bytes = bytes};
}

bool Connection::Holds(uint64_t loan, bool reservation) {
  return host_->core()->PlaceOf(client_, loan, reservation).extent != 0;
}

bool Connection::Tell(OpenRequest* open) {
  if (state_ != State::kOpen) return true;
  while (open->told < open->ready || open->done) {
    const size_t count = std::min<size_t>(open->ready - open->told, kMaxItemsPerFrame);
    const bool last = open->done && open->told + count == open->ready;
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
    const Status written = answers_to_->Write(writer_.Finish());
    if (written.code() == Code::kBusy) {
      if (!std::exchange(open->waiting, true)) waiting_.push_back(open);
      return false;
    }
    if (!written.ok()) return Break(written.message()), true;
    open->told += count;
    if (answers_to_->MustWake()) WakeClient();
    if (!last) continue;
    Record(open);
    items_ -= open->announced();
    by_request_.erase(open->request());
    open_.erase(open->number);
    return true;
  }
  return true;
}

bool Connection::TellWaiting() {
  bool any = false;
  while (!waiting_.empty()) {
    OpenRequest* const open = waiting_.front();
    const size_t told = open->told;
    const uint64_t number = open->number;
    open->waiting = false;
    waiting_.pop_front();
    const bool all = Tell(open);
    const auto found = open_.find(number);
    any |= found == open_.end() || found->second->told > told;
    if (all) continue;
    std::rotate(waiting_.begin(), waiting_.end() - 1, waiting_.end());  // It was the first.
    return any;
  }
  return any;
}

void Connection::WakeClient() { Wake(wake_client_); }

void Connection::WantBack(uint32_t extent) {
  if (!offered_.contains(extent) || state_ != State::kOpen) return;
  writer_.Begin(static_cast<uint16_t>(FrameKind::kReturnExtent), 0);
  EncodeExtent(extent, &writer_);
  Send(writer_.Finish());
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
    // The client does not know of these, so that nobody else would give them back.
    Undelivered left;
    for (const auto& [number, open] : open_) open->Forget(open->told, &left);
    releases_.insert(releases_.end(), left.leases.begin(), left.leases.end());
    aborts_.insert(aborts_.end(), left.reservations.begin(), left.reservations.end());
    host_->core()->Disconnect(client_);
    open_.clear();
    by_request_.clear();
    waiting_.clear();
    socket_.EndSending();
  }
  if (goodbye_ || (hung_up_ && !process_.valid())) return Leave();
  Linger();
}

void Connection::Leave() {
  const bool attached = state_ == State::kLingering;
  state_ = State::kGone;
  for (uint64_t* const watch : {&socket_watch_, &process_watch_, &event_watch_}) {
    host_->waiter()->Unwatch(std::exchange(*watch, 0));
  }
  if (!attached) return host_->OnGone(this);
  host_->core()->Detach(client_, [this, alive = alive_] {
    if (!*alive) return;
    for (const uint32_t extent : offered_) host_->core()->ReturnExtent(extent);
    offered_.clear();
    host_->OnGone(this);
  });
}

}  // namespace aquifer
