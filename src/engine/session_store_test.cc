#include "engine/session_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/sanitized.h"
#include "engine/engine_testing.h"
#include "kv/retain/retain.h"

namespace quire {
namespace {

// A model, a cache folder, and engines that come one after the other.
class SavedWorld {
 public:
  explicit SavedWorld(const TinyOptions& model = {.type = DType::q8_0, .layers = 2, .head_dim = 64})
      : file_(model),
        folder_(::testing::TempDir() + "quire_sessions_" + std::to_string(::getpid()) + "_" +
                std::to_string(next_++)) {
    restart();
  }
  ~SavedWorld() {
    engine_.reset();
    runtime_.reset();
    std::filesystem::remove_all(folder_);
  }

  void restart(RuntimeOptions options = {}) {
    sessions = std::make_shared<Sessions>();
    engine_.reset();
    runtime_.reset();
    options.threads = 1;
    options.kv_cache_bytes = std::uint64_t{64} << 20;
    options.kv_dir = folder_;
    options.kv_disk_write = TierWrite::never;  // what comes back comes out of the session's file
    auto opened = Runtime::open(file_.path(), options);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    runtime_ = std::move(opened.value());
    engine_ = std::make_unique<Engine>(*runtime_, options_, log_, clock_);
  }
  std::vector<TokenId> turn(const std::string& id, std::vector<TokenId> prompt,
                            std::uint32_t tokens, const KvPolicy& kv = {}) {
    Request r = request(std::move(prompt), tokens);
    r.kv = kv;
    auto began = sessions->begin(kv.tenant, id, {.prompt = r.prompt, .kv = r.kv});
    EXPECT_TRUE(began.ok()) << began.error().message;
    how = began.value()->how();
    r.kv.producer = began.value()->producer();
    r.session = std::move(began.value());
    return ask(std::move(r));
  }
  std::vector<TokenId> ask(Request r) {
    auto sink = std::make_shared<MemorySink>(1);
    PreparedJob p = prepare_job(*runtime_, options_, std::move(r), sink);
    EXPECT_TRUE(p.job) << p.failure.message;
    p.job->id = static_cast<JobId>(++jobs_);
    p.job->submitted = clock_.now();
    engine_->submit(std::move(p.job));
    while (engine_->has_jobs()) engine_->step();
    EXPECT_TRUE(sink->result) << (sink->failure ? sink->failure->message : "");
    if (sink->result) cached = sink->result->cached_tokens;
    return sink->answers[0].ids();
  }
  SessionStore store() {
    return SessionStore(*runtime_, {.run = [this](const auto& f) -> Status {
      f(*runtime_);
      return {};
    }});
  }
  Result<LoadedSession> load(const std::string& name, const KvPolicy& kv = {}) {
    return store().load(kv.tenant, name, "", [&](const std::string&) { return kv; });
  }
  std::string path(const std::string& name) const {
    for (const auto& f : std::filesystem::recursive_directory_iterator(folder_ + "/sessions"))
      if (f.path().filename() == name + ".kvc") return f.path();
    return {};
  }
  Runtime& runtime() { return *runtime_; }
  void forget() { engine_->drop_snapshots(); }

  std::shared_ptr<Sessions> sessions;
  SessionTurn::How how{};
  std::uint32_t cached = 0;

 private:
  static inline int next_ = 0;
  TinyFile file_;
  std::string folder_;
  ServiceOptions options_;
  RequestLog log_{64};
  SteadyClock clock_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Engine> engine_;
  std::uint64_t jobs_ = 0;
};

std::vector<TokenId> followed(std::vector<TokenId> a, std::span<const TokenId> b,
                              std::span<const TokenId> c) {
  a.insert(a.end(), b.begin(), b.end());
  a.insert(a.end(), c.begin(), c.end());
  return a;
}

KvPolicy keeping(const std::string& policy) {
  KvPolicy kv;
  if (!policy.empty())
    kv.retain = std::make_shared<RetainPolicy>(parse_retain_policy(policy).value());
  return kv;
}

// A session is saved after `answer` tokens, for each of them; each goes on after a restart as it did
// before.
void check_saved(std::span<const std::string> policies, std::span<const std::uint32_t> answers) {
  SavedWorld world;
  const auto first = printable_of(70, 1), second = printable_of(9, 2);
  struct Case {
    std::string name, policy;
    std::vector<TokenId> prompt, after;
  };
  std::vector<Case> cases;
  for (const std::string& policy : policies)
    for (const std::uint32_t answer : answers) {
      Case c{"s" + std::to_string(cases.size()), policy, {}, {}};
      const KvPolicy kv = keeping(policy);
      c.prompt = followed(first, world.turn(c.name, first, answer, kv), second);
      const auto saved = world.store().save(world.sessions->find("", c.name).value(), c.name);
      ASSERT_TRUE(saved.ok()) << saved.error().message;
      EXPECT_GT(saved.value().blocks, 0u);
      c.after = world.turn(c.name, c.prompt, 12, kv);
      EXPECT_EQ(world.how, SessionTurn::How::continued);
      world.forget();
      cases.push_back(std::move(c));
    }
  world.restart();
  for (const Case& c : cases) {
    const KvPolicy kv = keeping(c.policy);
    auto loaded = world.load(c.name, kv);
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    EXPECT_TRUE(loaded.value().own);
    ASSERT_TRUE(world.sessions->create(std::move(loaded.value().session)).value());
    EXPECT_EQ(world.turn(c.name, c.prompt, 12, kv), c.after) << c.policy << " " << c.name;
    EXPECT_EQ(world.how, SessionTurn::How::continued);
  }
}

TEST(SessionStore, EveryMethodGoesOnAfterARestart) {
  std::vector<std::string> policies;
  for (const RetainMethod* m : retain_methods())
    if (m->name != "oracle") {
      const std::string plain = std::string(m->name) + ":50%", often = plain + ",every=32";
      policies.push_back(parse_retain_policy(often).ok() ? often : plain);
    }
  if (kSanitized) policies = {"snapkv:50%", "h2o:50%,every=32"};
  const std::uint32_t answers[] = {1, 27};
  check_saved(policies, answers);
}

TEST(SessionStore, ItMaySaveAtAnyStep) {
  const std::string policies[] = {"", "h2o:40%,every=32"};
  std::vector<std::uint32_t> answers;
  for (std::uint32_t n = 1; n <= (kSanitized ? 3u : 34u); ++n) answers.push_back(n);
  check_saved(policies, answers);
}

TEST(SessionStore, BlocksComeBackUnderTheirOwnKeys) {
  SavedWorld world;
  const auto first = printable_of(130, 1);
  const auto said = world.turn("a", first, 40);
  const Session before = world.sessions->find("", "a").value();
  ASSERT_TRUE(world.store().save(before, "a").ok());
  struct stat info {};
  ASSERT_EQ(::stat(world.path("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  world.restart();
  const auto loaded = world.load("a");
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_TRUE(loaded.value().own);
  EXPECT_EQ(loaded.value().session.tokens, before.tokens);
  EXPECT_TRUE(loaded.value().session.lease);
  // Anybody's request finds them.
  const auto prompt = followed(first, said, printable_of(4, 2));
  world.ask(request(prompt, 4));
  EXPECT_EQ(world.cached, 160u);
  world.runtime().cache().check();
}

TEST(SessionStore, AForeignFileServesItsSessionAlone) {
  SavedWorld world, other;
  const auto first = printable_of(130, 1);
  const auto said = other.turn("a", first, 40);
  ASSERT_TRUE(other.store().save(other.sessions->find("", "a").value(), "a").ok());
  std::ifstream in(other.path("a"), std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(in), {});
  auto loaded =
      world.store().load_bytes("", bytes, "", [](const std::string&) { return KvPolicy{}; });
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_FALSE(loaded.value().own);
  EXPECT_FALSE(loaded.value().session.kv.producer.empty());
  ASSERT_TRUE(world.sessions->create(std::move(loaded.value().session)).value());
  const auto prompt = followed(first, said, printable_of(4, 2));
  world.ask(request(prompt, 4));
  EXPECT_EQ(world.cached, 0u) << "a stranger's blocks served another request";
  const auto after = world.turn("a", prompt, 8);
  EXPECT_EQ(world.how, SessionTurn::How::continued);
  EXPECT_EQ(world.cached, 160u);
  EXPECT_EQ(after, other.turn("a", prompt, 8));
}

TEST(SessionStore, DamagedFilesAndOtherModelsLoadNothing) {
  SavedWorld world;
  world.turn("a", printable_of(100, 1), 10);
  ASSERT_TRUE(world.store().save(world.sessions->find("", "a").value(), "a").ok());
  const std::string path = world.path("a");
  std::string whole;
  {
    std::ifstream in(path, std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto put = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  };
  world.restart();
  for (std::size_t i = 0; i < 40; ++i) {
    std::string bytes = whole;
    bytes[i * 7919 % bytes.size()] ^= 16;
    put(bytes);
    const auto loaded = world.load("a");
    ASSERT_FALSE(loaded.ok());
    EXPECT_TRUE(loaded.error().code == Code::corrupt || loaded.error().code == Code::unsupported)
        << loaded.error().message;
  }
  put(whole.substr(0, whole.size() - 4096));
  EXPECT_EQ(world.load("a").error().code, Code::corrupt);
  EXPECT_EQ(world.runtime().cache().stats().cached_blocks, 0u);
  put(whole);
  world.restart({.kv_format = "int8"});
  const auto other = world.load("a");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, Code::invalid);
  EXPECT_NE(other.error().message.find("another format"), std::string::npos)
      << other.error().message;
  EXPECT_EQ(world.load("a", keeping("h2o:50%")).error().code, Code::invalid);
}

TEST(SessionStore, NamesAreNoPathsAndFilesAreBounded) {
  SavedWorld world;
  for (const char* name : {"", "..", ".a", "a/b", "a b", "\xff"})
    EXPECT_FALSE(check_save_name(name).ok()) << name;
  world.turn("a", printable_of(100, 1), 10);
  const Session a = world.sessions->find("", "a").value();
  ASSERT_TRUE(world.store().save(a, "x").ok());
  Session other = a;
  other.tenant = other.kv.tenant = "other";
  ASSERT_TRUE(world.store().save(other, "y").ok());
  EXPECT_EQ(world.store().list("").value().size(), 1u);
  EXPECT_EQ(world.load("y").error().code, Code::not_found) << "another tenant's";
  EXPECT_TRUE(world.store().remove("", "x", true).ok());
  EXPECT_TRUE(world.store().remove("", "x", false).ok());
  EXPECT_EQ(world.store().remove("", "x", false).error().code, Code::not_found);
  Session blended = a;
  blended.kv.blend = 0.1;
  EXPECT_EQ(world.store().save(blended, "z").error().code, Code::unsupported);
  world.restart({.kv_disk_bytes = 1 << 20});
  world.turn("a", printable_of(100, 1), 10);
  const Session again = world.sessions->find("", "a").value();
  Status last;
  for (int i = 0; i < 200 && last.ok(); ++i) {
    const auto saved = world.store().save(again, "s" + std::to_string(i));
    if (!saved.ok()) last = saved.error();
  }
  ASSERT_FALSE(last.ok()) << "200 sessions fit in a megabyte";
  EXPECT_EQ(last.error().code, Code::exhausted);
}

}  // namespace
}  // namespace quire
