// The prefix tree: runs of blocks without branching, as JSON, Graphviz or folded stacks.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <unordered_map>

#include "engine/sessions.h"
#include "server/kv_select.h"
#include "server/routes.h"
#include "text/detokenizer.h"

namespace quire {
namespace {

constexpr std::size_t kBlocksMax = 100'000;  // copied from the cache at most
constexpr std::size_t kPreviewTokens = 64, kPreviewBytes = 80;
constexpr std::size_t kLeasesShown = 4096;
constexpr std::size_t kSharedBytes = 40;  // that a preview repeats of its neighbours', at most

// One block, copied between two steps of the engine.
struct Block {
  BlockKey key, parent;
  std::uint32_t depth_tokens = 0, tokens = 0, hits = 0, sequences = 0;
  std::uint64_t bytes = 0;
  Nanoseconds created = 0, last_used = 0, lease_until = 0;
  std::uint8_t priority = 0;
  bool pinned = false, in_flight = false, below = false;
  std::vector<TokenId> head = {};          // its first tokens
  std::vector<std::string> sessions = {};  // that end with it
};

struct Copy {
  std::vector<Block> blocks = {};  // parents before children
  Nanoseconds now = 0;
  bool truncated = false;
};

// All blocks, or one.
Copy copy_tree(EngineView& e, const std::optional<std::string>& tenant, bool text,
               const std::optional<BlockKey>& wanted = std::nullopt) {
  Copy out{.now = e.now};
  std::unordered_map<BlockKey, std::vector<std::string>, BlockKeyHash> sessions;
  for (const LeaseInfo& lease : e.runtime.cache().leases(tenant, {}, kLeasesShown))
    if (lease.label.starts_with(kSessionLabel))
      sessions[lease.node].push_back(lease.label.substr(kSessionLabel.size()));
  e.runtime.cache().tree([&](const NodeInfo& n) {
    if ((tenant && n.tenant != *tenant) || (wanted && n.key != *wanted)) return;
    if (!e.runtime.made(n.root)) return;  // another model's
    if (out.blocks.size() >= kBlocksMax) {
      out.truncated = true;
      return;
    }
    Block b{.key = n.key,
            .parent = n.parent,
            .depth_tokens = n.depth_tokens,
            .tokens = static_cast<std::uint32_t>(n.tokens.size()),
            .hits = n.hits,
            .sequences = n.sequences,
            .bytes = n.bytes,
            .created = n.created,
            .last_used = n.last_used,
            .lease_until = n.lease_until,
            .priority = n.priority,
            .pinned = n.pinned,
            .in_flight = n.in_flight,
            .below = n.below};
    if (const auto ends = sessions.find(n.key); ends != sessions.end()) b.sessions = ends->second;
    if (text)
      b.head.assign(n.tokens.begin(), n.tokens.begin() + std::min(n.tokens.size(), kPreviewTokens));
    out.blocks.push_back(std::move(b));
  });
  return out;
}

// A run of blocks that do not branch.
struct Run {
  const Block* first;
  const Block* last;
  const Block* second = nullptr;
  std::size_t parent = SIZE_MAX;  // run it hangs on
  std::uint32_t blocks = 0, tokens = 0, hits = 0, refs = 0, depth = 1, below = 0;
  std::vector<std::string> sessions = {};
  std::uint64_t bytes = 0, tokens_saved = 0;
  std::size_t shared = 0;  // tokens that its first block has in common with another one here
  std::vector<std::size_t> children = {};
};

// Runs that begin at one place: what they have in common would make their previews look the same.
void compare_heads(std::vector<Run>& runs, std::vector<std::size_t> siblings) {
  const auto head = [&](std::size_t i) -> const std::vector<TokenId>& {
    return runs[i].first->head;
  };
  std::ranges::sort(siblings, [&](std::size_t a, std::size_t b) { return head(a) < head(b); });
  for (std::size_t i = 1; i < siblings.size(); ++i) {
    const auto &a = head(siblings[i - 1]), &b = head(siblings[i]);
    const auto same = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
    for (const std::size_t one : {siblings[i - 1], siblings[i]})
      if (same < head(one).size()) runs[one].shared = std::max(runs[one].shared, same);
  }
}

std::vector<Run> make_runs(const std::vector<Block>& blocks) {
  std::unordered_map<BlockKey, std::uint32_t, BlockKeyHash> children;
  for (const Block& b : blocks) ++children[b.parent];
  std::unordered_map<BlockKey, std::size_t, BlockKeyHash> run_of;  // the run a block is the end of
  std::vector<Run> runs;
  for (const Block& b : blocks) {
    const auto above = run_of.find(b.parent);
    const bool continues = above != run_of.end() && children[b.parent] == 1;
    std::size_t at;
    if (continues) {
      at = above->second;
    } else {
      at = runs.size();
      runs.push_back({.first = &b, .last = &b});
      if (above != run_of.end()) {
        runs[at].parent = above->second;
        runs[at].depth = runs[above->second].depth + 1;
        runs[above->second].children.push_back(at);
      }
    }
    Run& r = runs[at];
    r.last = &b;
    if (++r.blocks == 2) r.second = &b;
    r.tokens += b.tokens;
    r.hits = std::max(r.hits, b.hits);
    r.refs = std::max(r.refs, b.sequences);
    r.bytes += b.bytes;
    r.below += b.below;
    r.sessions.insert(r.sessions.end(), b.sessions.begin(), b.sessions.end());
    r.tokens_saved += std::uint64_t{b.hits} * b.tokens;
    run_of[b.key] = at;
  }
  std::vector<std::size_t> first;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].parent == SIZE_MAX) first.push_back(i);
    compare_heads(runs, runs[i].children);
  }
  compare_heads(runs, std::move(first));
  return runs;
}

std::string preview(const Tokenizer& tokenizer, const Run& run) {
  std::vector<TokenId> tokens = run.first->head;
  if (run.second) tokens.insert(tokens.end(), run.second->head.begin(), run.second->head.end());
  const std::span<const TokenId> all = tokens;
  const bool skips = tokenizer.decode(all.first(run.shared)).size() > kSharedBytes;
  std::string text = skips ? "…" : "";
  Utf8Stream utf8;
  utf8.add(tokenizer.decode(all.subspan(skips ? run.shared : 0)), text);
  if (text.size() > kPreviewBytes) {
    std::size_t cut = kPreviewBytes - 3;
    while (cut > 0 && (text[cut] & 0xC0) == 0x80) --cut;
    text.resize(cut);
    text += "…";
  }
  return text;
}

struct View {
  std::string root, sort, format;
  std::uint32_t depth = 3, min_tokens = 0;
  std::size_t limit = 200;
  bool text = true;
};

std::uint64_t number_parameter(const HttpRequest& request, std::string_view name,
                               std::uint64_t otherwise) {
  const std::string text = request.parameter(name).value_or("");
  std::uint64_t value = otherwise;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

Json run_json(const std::vector<Run>& runs, std::size_t at, const View& view, Server& server,
              Nanoseconds now) {
  const Run& r = runs[at];
  const std::int64_t unix_offset = unix_now_ns() - now;
  Json lease = nullptr;
  const Nanoseconds until = r.last->lease_until;
  const bool ends = until != 0 && until != std::numeric_limits<Nanoseconds>::max();
  if (until != 0 || r.first->pinned)
    lease = {{"expires", ends ? Json(rfc3339(until + unix_offset)) : Json()},
             {"pin", r.first->pinned},
             {"sessions", r.sessions}};
  Json tiers{{"cpu", r.blocks}};
  if (const TierLink* below = server.runtime().tiers()) tiers[below->traits().name] = r.below;
  Json children = Json::array();
  for (const std::size_t c : r.children) children.push_back(runs[c].last->key.hex());
  const std::string& format = server.runtime().kv_format();
  Json out{{"hash", r.last->key.hex()},
           {"parent", r.parent == SIZE_MAX ? std::string(64, '0') : runs[r.parent].last->key.hex()},
           {"tokens", r.tokens},
           {"depth_tokens", r.last->depth_tokens},
           {"blocks", r.blocks},
           {"bytes", r.bytes},
           {"tiers", tiers},
           {"format", {{"k", format}, {"v", format}}},
           {"refs", r.refs},
           {"hits", r.hits},
           {"tokens_saved", r.tokens_saved},
           {"created", rfc3339(r.first->created + unix_offset)},
           {"last_used", rfc3339(r.last->last_used + unix_offset)},
           {"lease", lease},
           {"priority", r.last->priority},
           {"pinned", r.first->pinned},
           {"in_flight", r.last->in_flight},
           {"children", children}};
  if (view.text) out["text_preview"] = preview(server.runtime().tokenizer(), r);
  return out;
}

std::string label(const View& view, Server& server, const Run& r) {
  std::string text =
      view.text ? preview(server.runtime().tokenizer(), r) : r.last->key.hex().substr(0, 8);
  for (char& c : text)
    if (c == '\n' || c == ';' || c == '"' || c == '\\') c = ' ';
  return text;
}

std::string as_dot(const std::vector<Run>& runs, const std::vector<std::size_t>& shown,
                   const View& view, Server& server) {
  std::string out = "digraph kv {\n  rankdir=LR;\n  node [shape=box];\n";
  for (const std::size_t i : shown) {
    const Run& r = runs[i];
    out += fmt::format("  n{} [label=\"{}\\n{} tokens, {} hits\"];\n", i, label(view, server, r),
                       r.tokens, r.hits);
    if (r.parent != SIZE_MAX) out += fmt::format("  n{} -> n{};\n", r.parent, i);
  }
  return out + "}\n";
}

std::string as_folded(const std::vector<Run>& runs, const std::vector<std::size_t>& shown,
                      const View& view, Server& server) {
  std::string out;
  for (const std::size_t i : shown) {
    std::string stack;
    for (std::size_t at = i; at != SIZE_MAX; at = runs[at].parent)
      stack = label(view, server, runs[at]) + (stack.empty() ? "" : ";") + stack;
    out += fmt::format("{} {}\n", stack, runs[i].tokens);
  }
  return out;
}

void show_tree(Server& server, const std::shared_ptr<Call>& call, const View& view, Copy& copy) {
  const std::vector<Run> runs = make_runs(copy.blocks);
  std::vector<std::size_t> shown, level;
  std::uint32_t base_depth = 0;
  if (view.root.empty()) {
    for (std::size_t i = 0; i < runs.size(); ++i)
      if (runs[i].parent == SIZE_MAX) level.push_back(i);
  } else {
    for (std::size_t i = 0; i < runs.size(); ++i)
      if (runs[i].last->key.hex().starts_with(view.root)) level.push_back(i);
    if (level.empty())
      return post_refusal(call, not_found("no cached node begins with " + view.root));
    base_depth = runs[level.front()].depth - 1;
  }
  const auto order = [&](std::size_t a, std::size_t b) {
    if (view.sort == "bytes") return runs[a].bytes > runs[b].bytes;
    if (view.sort == "recent") return runs[a].last->last_used > runs[b].last->last_used;
    return runs[a].hits > runs[b].hits;
  };
  bool truncated = copy.truncated;
  while (!level.empty()) {
    std::ranges::stable_sort(level, order);
    std::vector<std::size_t> next;
    for (const std::size_t i : level) {
      if (runs[i].tokens < view.min_tokens) continue;
      if (shown.size() >= view.limit || runs[i].depth - base_depth > view.depth) {
        truncated = true;
        continue;
      }
      shown.push_back(i);
      next.insert(next.end(), runs[i].children.begin(), runs[i].children.end());
    }
    level = std::move(next);
  }
  if (view.format == "dot" || view.format == "folded")
    return call->exchange->post([call, text = view.format == "dot"
                                                  ? as_dot(runs, shown, view, server)
                                                  : as_folded(runs, shown, view, server)] {
      call->exchange->respond(
          {.headers = {{"Content-Type", "text/plain; charset=utf-8"}}, .body = text});
    });
  Json nodes = Json::array();
  for (const std::size_t i : shown) nodes.push_back(run_json(runs, i, view, server, copy.now));
  post_answer(call, {{"root", view.root.empty() ? std::string(64, '0') : view.root},
                     {"nodes", std::move(nodes)},
                     {"truncated", truncated}});
}

}  // namespace

void get_kv_tree(Server& server, std::shared_ptr<Call> call) {
  const HttpRequest& request = call->request();
  View view{.root = request.parameter("root").value_or(""),
            .sort = request.parameter("sort").value_or("hits"),
            .format = request.parameter("format").value_or("json"),
            .depth = static_cast<std::uint32_t>(number_parameter(request, "depth", 64)),
            .min_tokens = static_cast<std::uint32_t>(number_parameter(request, "min_tokens", 0)),
            .limit = std::min<std::size_t>(number_parameter(request, "limit", 200), 10'000)};
  const auto one_of = [&](const char* name, const std::string& given,
                          std::initializer_list<std::string_view> known) {
    if (std::ranges::find(known, given) != known.end()) return true;
    call->refuse(
        bad_value(name, fmt::format("must be one of {}, not '{}'", fmt::join(known, ", "), given)));
    return false;
  };
  if (!one_of("format", view.format, {"json", "dot", "folded"}) ||
      !one_of("sort", view.sort, {"hits", "bytes", "recent"}))
    return;
  if (view.root.find_first_not_of('0') == std::string::npos) view.root.clear();
  std::optional<std::string> tenant = request.parameter("tenant");
  if (!call->caller.admin) {  // sees its own only
    if (tenant && *tenant != call->caller.tenant)
      return call->refuse(forbidden("tenant: this key belongs to another tenant"));
    tenant = call->caller.tenant;
  }
  view.text = server.options().show_text && request.parameter("text").value_or("true") != "false";
  server.with_walk(
      call, [tenant, text = view.text](EngineView& e) { return copy_tree(e, tenant, text); },
      [&server, call, view](Copy& copy) { show_tree(server, call, view, copy); });
}

// One block, and where it lies in its prompt.
void get_kv_block(Server& server, std::shared_ptr<Call> call) {
  struct Found {
    std::optional<Block> block;
    Nanoseconds now = 0;
  };
  std::optional<std::string> tenant;
  if (!call->caller.admin) tenant = call->caller.tenant;
  server.with_walk(
      call,
      [hex = call->arguments.front(), tenant](EngineView& e) -> Result<Found> {
        if (hex.size() < 8) return Error{Code::invalid, "give at least 8 hex digits"};
        TRY(const BlockKey key, find_node(e.runtime.cache(), hex, tenant));
        Copy one = copy_tree(e, tenant, true, key);
        if (one.blocks.empty()) return Error{Code::not_found, "no cached node begins with " + hex};
        return Found{std::move(one.blocks.front()), e.now};
      },
      [&server, call](const Result<Found>& found) {
        if (!found.ok()) return post_refusal(call, from_error(found.error()));
        const Block& b = *found.value().block;
        const std::string& format = server.runtime().kv_format();
        Json out{{"hash", b.key.hex()},
                 {"parent", b.parent.hex()},
                 {"position", b.depth_tokens - b.tokens},
                 {"tokens", b.tokens},
                 {"bytes", b.bytes},
                 {"tier", "cpu"},
                 {"format", {{"k", format}, {"v", format}}},
                 {"refcount", b.sequences},
                 {"hits", b.hits},
                 {"priority", b.priority},
                 {"pinned", b.pinned},
                 {"last_used", rfc3339(unix_now_ns() + b.last_used - found.value().now)}};
        if (server.options().show_text) out["token_ids"] = b.head;
        post_answer(call, std::move(out));
      });
}

}  // namespace quire
