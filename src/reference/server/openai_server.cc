#include "reference/server/openai_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "metrics/prometheus_text.h"
#include "reference/server/answer_text.h"
#include "reference/server/openai_request.h"

namespace aquifer::reference {
namespace {

using nlohmann::json;

// If a model's bytes are no valid text, they are replaced, and the answer is not refused.
std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string_view ReasonText(FinishReason reason) {
  return reason == FinishReason::kLength ? "length" : "stop";
}

json UsageOf(const RequestFigures& figures) {
  const size_t cached =
      figures.prompt_tokens - std::min(figures.prompt_tokens, figures.computed_tokens);
  return {{"prompt_tokens", figures.prompt_tokens},
          {"completion_tokens", figures.generated_tokens},
          {"total_tokens", figures.prompt_tokens + figures.generated_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cached}}},
          {"aquifer",
           {{"computed_tokens", figures.computed_tokens},
            {"resident_tokens", figures.resident_tokens},
            {"dram_tokens", figures.dram_tokens},
            {"nvme_tokens", figures.nvme_tokens},
            {"preemptions", figures.preemptions},
            {"first_token_ms", figures.first_token_ms}}}};
}

HttpResponse ErrorOf(const OpenAiError& error) {
  return {.status = error.status, .body = error.Body()};
}

// One request on its way. The engine's thread alone touches it, once it is submitted.
class Reply {
 public:
  Reply(OpenAiRequest request, std::string id, std::string model,
        std::shared_ptr<HttpAnswer> answer, const Tokenizer* tokenizer)
      : request_(std::move(request)),
        id_(std::move(id)),
        model_(std::move(model)),
        created_(SystemClock()->UnixSeconds()),
        answer_(std::move(answer)),
        tokenizer_(tokenizer),
        text_(request_.stop_words) {}

  GenerateRequest TakeGenerate() { return std::move(request_.generate); }
  HttpAnswer* answer() { return answer_.get(); }

  bool OnToken(const GeneratedToken& token) {
    const std::string piece =
        token.silent ? std::string() : text_.Append(tokenizer_->Decode(token.token));
    if (request_.stream) {
      BeginStream();
      if (!piece.empty()) SendEvent(Choice(piece, nullptr));
    } else {
      whole_ += piece;
    }
    return !text_.stopped();
  }

  void OnDone(FinishReason reason, const RequestFigures& figures) {
    if (reason == FinishReason::kCancelled) return Cancelled();
    const std::string rest = text_.stopped() ? std::string() : text_.Finish();
    if (!request_.stream) {
      whole_ += rest;
      json body = Envelope(request_.chat ? "chat.completion" : "text_completion");
      body["choices"] = json::array({WholeChoice(ReasonText(reason))});
      body["usage"] = UsageOf(figures);
      return answer_->Reply({.body = Dump(body)});
    }
    BeginStream();
    if (!rest.empty()) SendEvent(Choice(rest, nullptr));
    SendEvent(Choice("", ReasonText(reason)));
    if (request_.usage_in_stream) {
      json usage = Envelope(StreamKind());
      usage["choices"] = json::array();
      usage["usage"] = UsageOf(figures);
      SendEvent(usage);
    }
    answer_->Send("data: [DONE]\n\n");
    answer_->End();
  }

 private:
  const char* StreamKind() const {
    return request_.chat ? "chat.completion.chunk" : "text_completion";
  }

  json Envelope(const char* kind) const {
    return {{"id", id_}, {"object", kind}, {"created", created_}, {"model", model_}};
  }

  json WholeChoice(std::string_view reason) const {
    json choice = {{"index", 0}, {"finish_reason", reason}, {"logprobs", nullptr}};
    if (request_.chat) {
      choice["message"] = {{"role", "assistant"}, {"content", whole_}};
    } else {
      choice["text"] = whole_;
    }
    return choice;
  }

  // A piece of an answer; the last one has a reason.
  json Choice(const std::string& piece, std::optional<std::string_view> reason) const {
    json choice = {{"index", 0}, {"logprobs", nullptr}};
    choice["finish_reason"] = reason ? json(*reason) : json();
    if (!request_.chat) {
      choice["text"] = piece;
    } else {
      choice["delta"] = reason ? json::object() : json{{"content", piece}};
    }
    json event = Envelope(StreamKind());
    event["choices"] = json::array({choice});
    return event;
  }
  json Choice(const std::string& piece, std::nullptr_t) const {
    return Choice(piece, std::optional<std::string_view>());
  }

  void BeginStream() {
    if (std::exchange(begun_, true)) return;
    answer_->Begin({.content_type = "text/event-stream"});
    if (!request_.chat) return;
    json event = Envelope(StreamKind());
    event["choices"] = json::array({{{"index", 0},
                                     {"delta", {{"role", "assistant"}, {"content", ""}}},
                                     {"finish_reason", nullptr}}});
    SendEvent(event);
  }

  void SendEvent(const json& event) { answer_->Send("data: " + Dump(event) + "\n\n"); }

  // The client is gone, or the engine ends.
  void Cancelled() {
    if (begun_) return answer_->End();
    answer_->Reply(
        ErrorOf({.status = 503, .message = "the engine is shutting down", .type = "server_error"}));
  }

  OpenAiRequest request_;
  const std::string id_;
  const std::string model_;
  const int64_t created_;
  const std::shared_ptr<HttpAnswer> answer_;  // Shared with the server while it has the connection.
  const Tokenizer* const tokenizer_;
  AnswerText text_;
  std::string whole_;
  bool begun_ = false;
};

double ProcessCpuSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

std::string MetricsText(const EngineFigures& figures) {
  PrometheusText text;
  const auto counter = [&text](std::string_view name, std::string_view help, uint64_t value) {
    text.Family(name, MetricKind::kCounter, help);
    text.Sample({}, value);
  };
  const auto gauge = [&text](std::string_view name, std::string_view help, uint64_t value) {
    text.Family(name, MetricKind::kGauge, help);
    text.Sample({}, value);
  };
  counter("aquifer_reference_requests_total", "Requests accepted", figures.requests);
  counter("aquifer_reference_cancelled_total", "Requests whose client hung up", figures.cancelled);
  counter("aquifer_reference_generated_tokens_total", "Tokens of answers",
          figures.generated_tokens);
  text.Family("aquifer_reference_prompt_tokens_total", MetricKind::kCounter,
              "Tokens of prompts, by where their KV came from");
  text.Sample({{"source", "computed"}}, figures.computed_tokens);
  text.Sample({{"source", "resident"}}, figures.resident_tokens);
  text.Sample({{"source", "dram"}}, figures.dram_tokens);
  text.Sample({{"source", "nvme"}}, figures.nvme_tokens);
  counter("aquifer_reference_preemptions_total", "Requests that lost their pages to older ones",
          figures.preemptions);
  counter("aquifer_reference_evicted_blocks_total", "Blocks whose pages were needed for others",
          figures.evicted_blocks);
  counter("aquifer_reference_stored_blocks_total", "Blocks that the cache has taken",
          figures.offload.stored_blocks);
  counter("aquifer_reference_refused_blocks_total", "Blocks that the cache did not take",
          figures.offload.refused_blocks);
  counter("aquifer_reference_missed_blocks_total", "Blocks that were fetched in vain, and computed",
          figures.offload.missed_blocks);
  counter("aquifer_reference_staged_blocks_total",
          "Blocks that were brought to DRAM while their request waited for pages",
          figures.offload.staged_blocks);
  counter("aquifer_reference_awaited_blocks_total",
          "Blocks that another engine was filling, and that were waited for",
          figures.offload.awaited_blocks);
  gauge("aquifer_reference_running", "Requests under way", figures.running);
  gauge("aquifer_reference_waiting", "Requests that wait for pages or their turn", figures.waiting);
  gauge("aquifer_reference_pages", "Pages of KV", figures.pages);
  gauge("aquifer_reference_pages_in_use", "Pages of requests under way", figures.pages_in_use);
  text.Family("aquifer_reference_busy_seconds_total", MetricKind::kCounter,
              "Time in steps that had something to compute");
  text.Sample({}, static_cast<double>(figures.busy_nanos) / 1e9);
  text.Family("aquifer_reference_offload_seconds_total", MetricKind::kCounter,
              "Time in calls of the cache, copies included");
  text.Sample({}, static_cast<double>(figures.offload.nanos) / 1e9);
  text.Family("aquifer_reference_offload_cpu_seconds_total", MetricKind::kCounter,
              "The part of that time with a processor; compare with the whole process");
  text.Sample({}, static_cast<double>(figures.offload.cpu_nanos) / 1e9);
  text.Family("process_cpu_seconds_total", MetricKind::kCounter,
              "Processor time of all threads, in seconds");
  text.Sample({}, ProcessCpuSeconds());
  return text.Take();
}

class EngineServer final : public OpenAiServer, private HttpHandler {
 public:
  EngineServer(const OpenAiOptions& options, Engine* engine, const Tokenizer* tokenizer)
      : rules_{.model = options.model},
        engine_(engine),
        tokenizer_(tokenizer),
        created_(SystemClock()->UnixSeconds()) {}

  Status Start(const OpenAiOptions& options) {
    HttpHandler* const handler = this;
    AQ_ASSIGN_OR_RETURN(server_, StartHttpServer({.address = options.address,
                                                  .limits = options.limits,
                                                  .thread_name = "aq-openai"},
                                                 handler));
    return Status();
  }

  uint16_t port() const override { return server_->address()->port; }

 private:
  HttpResponse Refusal(unsigned status, std::string_view /*code*/,
                       std::string_view message) override {
    return ErrorOf({.status = status, .message = std::string(message)});
  }

  // An engine takes its time, and its client may hang up.
  std::chrono::milliseconds Handle(HttpRequest call, std::shared_ptr<HttpAnswer> answer) override {
    Answer(call, answer);
    return {};
  }

  void Answer(const HttpRequest& call, const std::shared_ptr<HttpAnswer>& answer) {
    const bool chat = call.path == "/v1/chat/completions";
    if (chat || call.path == "/v1/completions") {
      return call.method == "POST" ? Generate(call, chat, answer) : RefuseMethod("POST", answer);
    }
    const std::string one_model = "/v1/models/" + rules_.model;
    if (call.path != "/v1/models" && call.path != one_model && call.path != "/health" &&
        call.path != "/metrics") {
      return Refuse(
          {.status = 404, .message = "there is nothing at " + call.path, .code = "unknown_url"},
          answer);
    }
    if (call.method != "GET") return RefuseMethod("GET", answer);
    if (call.path == "/health") {
      return answer->Reply({.body = R"({"status":"ok"})"});
    }
    if (call.path == "/metrics") {
      return answer->Reply(
          {.content_type = "text/plain; version=0.0.4", .body = MetricsText(engine_->figures())});
    }
    const json model = {{"id", rules_.model},
                        {"object", "model"},
                        {"created", created_},
                        {"owned_by", "aquifer"},
                        {"max_model_len", engine_->shape().max_positions}};
    answer->Reply({.body = Dump(call.path == one_model
                                    ? model
                                    : json{{"object", "list"}, {"data", json::array({model})}})});
  }

  static void Refuse(const OpenAiError& error, const std::shared_ptr<HttpAnswer>& answer) {
    answer->Reply(ErrorOf(error));
  }
  static void RefuseMethod(const char* method, const std::shared_ptr<HttpAnswer>& answer) {
    Refuse({.status = 405, .message = fmt::format("use {} here", method)}, answer);
  }

  void Generate(const HttpRequest& call, bool chat, const std::shared_ptr<HttpAnswer>& answer) {
    OpenAiRequest request;
    OpenAiError error;
    if (!ParseOpenAiRequest(call.body, chat, rules_, *tokenizer_, &request, &error)) {
      return Refuse(error, answer);
    }
    std::string id = fmt::format("{}-{}-{}", chat ? "chatcmpl" : "cmpl", created_, ++last_id_);
    // Shared by the two callbacks.
    const auto reply = std::make_shared<Reply>(std::move(request), std::move(id), rules_.model,
                                               answer, tokenizer_);
    GenerateRequest generate = reply->TakeGenerate();
    generate.on_token = [reply](const GeneratedToken& token) { return reply->OnToken(token); };
    generate.on_done = [reply](FinishReason reason, const RequestFigures& figures) {
      reply->OnDone(reason, figures);
    };
    const Result<RequestId> submitted = engine_->Submit(std::move(generate));
    if (!submitted.ok()) return RefuseSubmitted(submitted.status(), answer);
    answer->OnHangUp([engine = engine_, id = *submitted] { engine->Cancel(id); });
  }

  static void RefuseSubmitted(const Status& status, const std::shared_ptr<HttpAnswer>& answer) {
    if (status.code() == Code::kBusy) {
      return Refuse({.status = 429,
                     .message = status.message(),
                     .type = "rate_limit_error",
                     .code = "rate_limit_exceeded"},
                    answer);
    }
    Refuse(
        {.status = 400,
         .message = status.message(),
         .param = "prompt",
         .code = status.message().starts_with("the prompt has") ? "context_length_exceeded" : ""},
        answer);
  }

  const OpenAiRules rules_;
  Engine* const engine_;
  const Tokenizer* const tokenizer_;
  const int64_t created_;
  uint64_t last_id_ = 0;  // On the server's thread.
  std::unique_ptr<HttpServer> server_;
};

}  // namespace

Result<std::unique_ptr<OpenAiServer>> StartOpenAiServer(const OpenAiOptions& options,
                                                        Engine* engine,
                                                        const Tokenizer* tokenizer) {
  auto server = std::make_unique<EngineServer>(options, engine, tokenizer);
  AQ_RETURN_IF_ERROR(server->Start(options));
  return std::unique_ptr<OpenAiServer>(std::move(server));
}

}  // namespace aquifer::reference
