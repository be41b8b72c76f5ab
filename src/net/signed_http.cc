#include "net/signed_http.h"

#ifdef QUIRE_CURL
#include <curl/curl.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/hex.h"
#endif

namespace quire {

#ifdef QUIRE_CURL

namespace {

// The hash of a body is signed with the request.
std::string sha256_hex(std::span<const std::byte> bytes) {
  std::array<std::uint8_t, 32> digest{};
  EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  return to_hex(digest);
}

const char* method_name(HttpMethod method) {
  constexpr const char* kNames[] = {"GET", "HEAD", "PUT", "DELETE"};
  return kNames[static_cast<std::size_t>(method)];
}

}  // namespace

struct SignedHttp::Inside {
  // One request at a time; it is used again for the next one.
  struct Line {
    Inside* of = nullptr;
    CURL* curl = nullptr;
    curl_slist* headers = nullptr;
    std::size_t which = 0;
    std::vector<std::byte> body = {};
    curl_off_t moved = 0;  // bytes, when it was last looked at
    bool too_long = false;
    std::array<char, CURL_ERROR_SIZE> problem{};

    ~Line() {
      if (curl) curl_easy_cleanup(curl);
      curl_slist_free_all(headers);
    }
  };

  SignedHttpOptions options;
  SteadyClock clock;
  CURLM* multi = nullptr;
  std::vector<std::unique_ptr<Line>> lines;  // all that were made
  std::vector<Line*> idle, busy;
  Nanoseconds progress = 0;

  ~Inside() {
    stop();
    lines.clear();
    if (multi) curl_multi_cleanup(multi);
  }

  void stop() {
    for (Line* line : busy) curl_multi_remove_handle(multi, line->curl);
    idle.insert(idle.end(), busy.begin(), busy.end());
    busy.clear();
  }

  static std::size_t take(char* data, std::size_t size, std::size_t count, void* of) {
    Line& line = *static_cast<Line*>(of);
    const std::size_t bytes = size * count;
    line.too_long = line.body.size() + bytes > line.of->options.answer_bytes_max;
    if (line.too_long) return 0;
    const auto* from = reinterpret_cast<const std::byte*>(data);
    line.body.insert(line.body.end(), from, from + bytes);
    return bytes;
  }

  static int moved(void* of, curl_off_t, curl_off_t down, curl_off_t, curl_off_t up) {
    Line& line = *static_cast<Line*>(of);
    if (down + up != line.moved) line.of->progress = line.of->clock.now();
    line.moved = down + up;
    return 0;
  }

  Line* free_line() {
    if (!idle.empty()) {
      Line* line = idle.back();
      idle.pop_back();
      return line;
    }
    auto made = std::make_unique<Line>();
    made->of = this;
    made->curl = curl_easy_init();
    if (made->curl == nullptr) return nullptr;
    lines.push_back(std::move(made));
    return lines.back().get();
  }

  Status begin(std::size_t which, const SignedRequest& request) {
    Line* const line = free_line();
    if (line == nullptr) return Error{Code::unavailable, "libcurl has no memory"};
    CURL* const c = line->curl;
    line->which = which;
    line->body.clear();
    line->moved = 0;
    line->too_long = false;
    line->problem[0] = 0;
    curl_easy_reset(c);
    curl_slist_free_all(line->headers);
    line->headers = nullptr;
    const auto header = [&](const std::string& text) {
      line->headers = curl_slist_append(line->headers, text.c_str());
    };
    header("x-amz-content-sha256: " + sha256_hex(request.body));
    if (!options.session_token.empty()) header("x-amz-security-token: " + options.session_token);
    const std::string way = fmt::format("aws:amz:{}:{}", options.region, options.service);
    const long patience_ms = std::max<long>(1, static_cast<long>(options.patience / 1'000'000));
    curl_easy_setopt(c, CURLOPT_URL, request.url.c_str());
    curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, method_name(request.method));
    if (request.method == HttpMethod::head) curl_easy_setopt(c, CURLOPT_NOBODY, 1L);
    if (request.method == HttpMethod::put) {
      header("Content-Type: application/octet-stream");
      curl_easy_setopt(c, CURLOPT_POST, 1L);
      curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE,
                       static_cast<curl_off_t>(request.body.size()));
      curl_easy_setopt(c, CURLOPT_POSTFIELDS, request.body.data());
      curl_easy_setopt(c, CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);
    }
    curl_easy_setopt(c, CURLOPT_AWS_SIGV4, way.c_str());
    curl_easy_setopt(c, CURLOPT_USERNAME, options.key_id.c_str());
    curl_easy_setopt(c, CURLOPT_PASSWORD, options.key.c_str());
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, line->headers);
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_QUICK_EXIT, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, patience_ms);
    if (!options.ca_file.empty()) curl_easy_setopt(c, CURLOPT_CAINFO, options.ca_file.c_str());
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, line->problem.data());
    curl_easy_setopt(c, CURLOPT_PRIVATE, line);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, &Inside::take);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, line);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, &Inside::moved);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, line);
    busy.push_back(line);
    if (curl_multi_add_handle(multi, c) != CURLM_OK)
      return Error{Code::unavailable, "libcurl cannot begin a request"};
    return {};
  }

  // A request has ended.
  Status end(const CURLMsg& message, const Done& done) {
    Line* line = nullptr;
    curl_easy_getinfo(message.easy_handle, CURLINFO_PRIVATE, &line);
    const CURLcode result = message.data.result;
    long status = 0;
    curl_easy_getinfo(line->curl, CURLINFO_RESPONSE_CODE, &status);
    curl_multi_remove_handle(multi, line->curl);
    std::erase(busy, line);
    idle.push_back(line);
    progress = clock.now();
    if (line->too_long) return Error{Code::unavailable, "an answer is too long"};
    if (result != CURLE_OK)
      return Error{Code::unavailable,
                   line->problem[0] != 0 ? line->problem.data() : curl_easy_strerror(result)};
    done(line->which, {static_cast<int>(status), line->body});
    return {};
  }

  Status run(std::span<const SignedRequest> requests, const Done& done) {
    progress = clock.now();
    for (std::size_t next = 0; next < requests.size() || !busy.empty();) {
      while (next < requests.size() && busy.size() < options.at_once) {
        TRY_STATUS(begin(next, requests[next]));
        ++next;
      }
      int running = 0, left = 0;
      if (curl_multi_perform(multi, &running) != CURLM_OK)
        return Error{Code::unavailable, "libcurl cannot go on"};
      while (const CURLMsg* message = curl_multi_info_read(multi, &left))
        if (message->msg == CURLMSG_DONE) TRY_STATUS(end(*message, done));
      const Nanoseconds waited = clock.now() - progress;
      if (busy.empty()) continue;
      if (waited > options.patience)
        return Error{Code::unavailable,
                     fmt::format("no answer for {} ms", options.patience / 1'000'000)};
      const auto wait_ms = static_cast<int>((options.patience - waited) / 1'000'000 + 1);
      if (next < requests.size() && busy.size() < options.at_once) continue;
      curl_multi_poll(multi, nullptr, 0, std::min(wait_ms, 100), nullptr);
    }
    return {};
  }
};

bool SignedHttp::built_in() { return true; }

Result<std::unique_ptr<SignedHttp>> SignedHttp::open(const SignedHttpOptions& options) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (ready != CURLE_OK) return Error{Code::unavailable, curl_easy_strerror(ready)};
  auto inside = std::make_unique<Inside>();
  inside->options = options;
  inside->multi = curl_multi_init();
  if (inside->multi == nullptr) return Error{Code::unavailable, "libcurl has no memory"};
  curl_multi_setopt(inside->multi, CURLMOPT_MAXCONNECTS, static_cast<long>(options.at_once));
  return std::unique_ptr<SignedHttp>(new SignedHttp(std::move(inside)));
}

Status SignedHttp::run(std::span<const SignedRequest> requests, const Done& done) {
  Status status = inside_->run(requests, done);
  inside_->stop();
  return status;
}

#else

struct SignedHttp::Inside {};

bool SignedHttp::built_in() { return false; }
Result<std::unique_ptr<SignedHttp>> SignedHttp::open(const SignedHttpOptions&) {
  return Error{Code::unsupported,
               "this build has no libcurl; run scripts/setup --s3 and build again"};
}
Status SignedHttp::run(std::span<const SignedRequest>, const Done&) { return {}; }

#endif

SignedHttp::SignedHttp(std::unique_ptr<Inside> inside) : inside_(std::move(inside)) {}
SignedHttp::~SignedHttp() = default;

}  // namespace quire
