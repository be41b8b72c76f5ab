// python/native.cc - what Python's package `quire` is made of: the server of `quire serve` in the
// process of its caller, asked by its routes, and logits.
//
//   engine = quire._native.Engine(["model.gguf", "--kv-format", "int8"])
//   call = engine.call("POST", "/v1/completions", '{"prompt": "Hello"}')
//   while chunk := call.read(): ...
//
// No call holds Python's lock while it waits.
#include <CLI/CLI.hpp>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cli/serve_options.h"
#include "engine/stepper.h"
#include "net/local_exchange.h"
#include "server/server.h"

namespace nb = nanobind;

namespace quire {
namespace {

[[noreturn]] void raise(const Error& error) {
  switch (error.code) {
    case Code::invalid:
    case Code::unsupported:
      throw nb::value_error(error.message.c_str());
    case Code::not_found:
      PyErr_SetString(PyExc_FileNotFoundError, error.message.c_str());
      throw nb::python_error();
    case Code::exhausted:
      PyErr_SetString(PyExc_MemoryError, error.message.c_str());
      throw nb::python_error();
    default:
      throw std::runtime_error(error.message);
  }
}

template <class T>
T value_of(Result<T> result) {
  if (!result.ok()) raise(result.error());
  return std::move(result.value());
}

// Python takes signals; threads that start while this lives do not.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

cli::ServeOptions read_options(std::vector<std::string> words) {
  CLI::App app;
  cli::ServeOptions o;
  o.port = 0;
  cli::add_serve_options(app, o);
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  try {
    app.parse(words);
  } catch (const CLI::ParseError& e) {
    throw nb::value_error(e.what());
  }
  return o;
}

Result<std::unique_ptr<Server>> start(const cli::ServeOptions& o, bool listen) {
  TRY(const std::string path, cli::find_model(o.model));
  TRY(ServerOptions options, cli::server_options(o, path));
  TRY(const ServiceOptions scheduling, cli::service_options(o));
  options.http.listen = listen;
  const NoSignals quiet;
  TRY(auto door, Door::open(options.http));
  TRY(auto runtime, cli::open_runtime(o.model));
  options.folder = runtime->kv_dir();
  TRY(auto service, Service::start(std::move(runtime), scheduling));
  return Server::start(std::move(service), std::move(options), std::move(door));
}

class LocalCall {
 public:
  explicit LocalCall(std::shared_ptr<LocalExchange> x) : x_(std::move(x)) {}
  ~LocalCall() { x_->leave(); }

  // Bytes of the body as they come; none at its end.
  nb::bytes read() {
    std::string bytes;
    while (!ready()) {
    }
    {
      nb::gil_scoped_release unlocked;
      x_->read(bytes);
    }
    return nb::bytes(bytes.data(), bytes.size());
  }
  // None: nothing is there yet.
  nb::object try_read() {
    std::string bytes;
    if (!x_->try_read(bytes)) return nb::none();
    return nb::bytes(bytes.data(), bytes.size());
  }
  int status() {
    while (!ready()) {
    }
    nb::gil_scoped_release unlocked;
    return x_->status();
  }
  int fileno() const { return x_->descriptor(); }
  void cancel() { x_->leave(); }

 private:
  // Waits a while, and lets Python look at its signals.
  bool ready() {
    bool came;
    {
      nb::gil_scoped_release unlocked;
      came = x_->wait(std::chrono::milliseconds(100));
    }
    if (!came && PyErr_CheckSignals() != 0) throw nb::python_error();
    return came;
  }

  std::shared_ptr<LocalExchange> x_;
};

class LocalEngine {
 public:
  LocalEngine(std::vector<std::string> words, bool listen) {
    const cli::ServeOptions o = read_options(std::move(words));
    nb::gil_scoped_release unlocked;
    auto started = start(o, listen);
    if (!started.ok()) {
      nb::gil_scoped_acquire locked;
      raise(started.error());
    }
    server_ = std::move(started.value());
  }
  ~LocalEngine() { close(); }

  std::shared_ptr<LocalCall> call(const std::string& method, const std::string& path,
                                  nb::bytes body,
                                  const std::vector<std::pair<std::string, std::string>>& headers) {
    Server& server = open();
    HttpRequest request;
    request.method = method;
    request.path = path;
    if (const auto mark = path.find('?'); mark != path.npos) {
      request.query = path.substr(mark + 1);
      request.path.resize(mark);
    }
    request.headers = {{"Host", "localhost"}, {"Content-Type", "application/json"}};
    for (const auto& [name, value] : headers) request.headers.push_back({name, value});
    request.body.assign(body.c_str(), body.size());
    auto x = std::make_shared<LocalExchange>(
        std::move(request), [to = std::weak_ptr(server_)](std::function<void()> f) {
          if (const auto server = to.lock()) server->post(std::move(f));
        });
    server.take(x);
    return std::make_shared<LocalCall>(std::move(x));
  }

  // The logits that follow the prompt, or those that follow each of its tokens: [rows][vocabulary].
  nb::ndarray<nb::numpy, float> logits(const std::vector<TokenId>& prompt, bool all) {
    Server& server = open();
    auto rows = std::make_unique<std::vector<float>>();
    const std::size_t vocabulary = server.runtime().config().vocabulary;
    {
      nb::gil_scoped_release unlocked;
      const Status done =
          server.service()
              .call([&](EngineView& e) { return compute_logits(e.runtime, prompt, all, *rows); })
              .get();
      if (!done.ok()) {
        nb::gil_scoped_acquire locked;
        raise(done.error());
      }
    }
    std::vector<float>* const data = rows.release();
    nb::capsule owner(data, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
    if (!all) return {data->data(), {vocabulary}, owner};
    return {data->data(), {prompt.size(), vocabulary}, owner};
  }

  std::uint16_t port() { return open().port(); }

  void close() {
    auto server = std::exchange(server_, nullptr);
    if (!server) return;
    nb::gil_scoped_release unlocked;
    server->drain();
    server->stop();
  }

 private:
  Server& open() {
    if (!server_) throw nb::value_error("the engine is closed");
    return *server_;
  }

  // On the engine's thread. Only the last row comes from the cache's help: it keeps no logits.
  static Status compute_logits(Runtime& runtime, const std::vector<TokenId>& prompt, bool all,
                               std::vector<float>& out) {
    const auto count = static_cast<std::uint32_t>(prompt.size());
    if (count == 0 || count > runtime.context())
      return Error{Code::invalid, "a prompt has 1 to " + std::to_string(runtime.context()) +
                                      " tokens, this one " + std::to_string(count)};
    for (const TokenId t : prompt)
      if (t >= runtime.config().vocabulary)
        return Error{Code::invalid, "there is no token " + std::to_string(t)};
    Stepper stepper(runtime);
    if (!all) {
      TRY(Sequence s, runtime.open_sequence(count));
      runtime.cache().attach(s, prompt);
      TRY(const std::span<float> row, stepper.read(s));
      out.assign(row.begin(), row.end());
      return {};
    }
    TRY(Sequence s, runtime.empty_sequence(count));
    for (std::uint32_t at = 0; at < count;) {
      const std::uint32_t rows = std::min(stepper.chunk_rows(s, 0), count - at);
      const StepItem item{&s, std::span(prompt).subspan(at, rows), Logits::all};
      TRY(const std::span<float> part, stepper.run({&item, 1}));
      out.insert(out.end(), part.begin(), part.end());
      at += rows;
    }
    return {};
  }

  std::shared_ptr<Server> server_;
};

}  // namespace
}  // namespace quire

NB_MODULE(_native, m) {
  using quire::LocalCall;
  using quire::LocalEngine;
  m.doc() = "The engine and the server of Quire, in this process.";
  nb::class_<LocalCall>(m, "Call", "A request that is being answered.")
      .def("read", &LocalCall::read, "Waits for more of the body; b'' at its end.")
      .def("try_read", &LocalCall::try_read, "More of the body; None if nothing is there yet.")
      .def("status", &LocalCall::status, "The HTTP status; waits until it is known.")
      .def("fileno", &LocalCall::fileno, "Readable while there is something to read.")
      .def("cancel", &LocalCall::cancel, "Ends the request.");
  nb::class_<LocalEngine>(m, "Engine", "A model that is served in this process.")
      .def(nb::init<std::vector<std::string>, bool>(), nb::arg("arguments"), nb::arg("listen"))
      .def("call", &LocalEngine::call, nb::arg("method"), nb::arg("path"), nb::arg("body"),
           nb::arg("headers"))
      .def("logits", &LocalEngine::logits, nb::arg("prompt"), nb::arg("all"))
      .def_prop_ro("port", &LocalEngine::port)
      .def("close", &LocalEngine::close);
}
