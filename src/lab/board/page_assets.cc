#include "lab/board/page_assets.h"

namespace quire {

const char* const kPageStyle = R"(
:root{color-scheme:light dark;--ink:#1b1f24;--dim:#5b6470;--line:#e1e5ea;--paper:#fff;--raised:#f6f7f9;--mark:#0a7a4f;
--format:#2a6fdb;--evict:#d9822b;--merge:#a0479c;--mixed:#c2334d;--select:#12908e;--reuse:#7a5cff;--anchor:#7b8490;--other:#444}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--dim:#9aa3ad;--line:#2d333b;--paper:#14171a;--raised:#1c2025;--mark:#3ecf8e;
--format:#6ea8ff;--evict:#f0a653;--merge:#d484d0;--mixed:#ff7089;--select:#3cc4c1;--reuse:#a893ff;--anchor:#9aa3ad;--other:#ccc}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:96rem;margin:0 auto;padding:1.5rem 1rem}
h1{font-weight:650;margin:0 0 .25rem}h2{font-weight:600;margin:2.5rem 0 0}
.about{color:var(--dim);max-width:60rem;margin:.25rem 0 1rem}footer{color:var(--dim);margin:3rem 0;font-size:13px;overflow-wrap:anywhere}
pre{white-space:pre-wrap}
.facts,.winners{list-style:none;padding:0;margin:.5rem 0 1rem;display:flex;flex-wrap:wrap;gap:.5rem}
.facts li{border:1px solid var(--line);border-radius:1rem;padding:.1rem .7rem;font-size:13px;color:var(--dim)}
.winners li{flex:1 1 11rem;background:var(--raised);border-radius:.5rem;padding:.5rem .75rem;display:grid}
.winners span{color:var(--dim);font-size:13px}.winners b{font-weight:600;overflow-wrap:anywhere}
.controls{display:flex;flex-wrap:wrap;gap:.5rem 1.25rem;padding:.6rem .75rem;background:var(--raised);border-radius:.5rem;align-items:end}
fieldset{border:0;padding:0;margin:0;display:flex;flex-wrap:wrap;gap:.25rem .75rem;align-items:center}legend{padding:0;font-size:12px;color:var(--dim)}
.controls label{white-space:nowrap;cursor:pointer}.controls small{color:var(--dim)}.controls input[type=search]{width:9rem}
.controls input,.controls select{font:inherit;accent-color:var(--k,var(--mark))}output{color:var(--dim);font-size:13px;margin-left:auto}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,34rem),1fr));gap:1rem}
figure{margin:0;overflow-x:auto}svg{width:100%;min-width:34rem;height:auto;display:block}
svg text{fill:var(--dim);font-size:11px}svg .says{font-size:12px}svg .name{fill:var(--ink);font-size:11px}
svg .axis{stroke:var(--line)}svg polyline{fill:none;stroke:var(--mark);stroke-width:1.5;stroke-linejoin:round}
svg circle{fill:var(--k);fill-opacity:.45}svg circle.best{fill-opacity:1;stroke:var(--paper);stroke-width:1.5}
svg circle.off{display:none}svg a:focus circle,svg circle:hover{fill-opacity:1;stroke:var(--ink);stroke-width:1.5}
.format{--k:var(--format)}.evict{--k:var(--evict)}.merge{--k:var(--merge)}.mixed{--k:var(--mixed)}
.select{--k:var(--select)}.reuse{--k:var(--reuse)}.anchor{--k:var(--anchor)}.other{--k:var(--other)}
.scroll{overflow:auto;max-height:85vh;border:1px solid var(--line);border-radius:.5rem}
table{border-collapse:separate;border-spacing:0;font-variant-numeric:tabular-nums;width:100%;font-size:14px}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{position:sticky;top:0;background:var(--raised);cursor:pointer;font-weight:600;z-index:1;user-select:none}
th[aria-sort=ascending]::after{content:" ↑"}th[aria-sort=descending]::after{content:" ↓"}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--paper)}th:first-child{z-index:2;background:var(--raised)}
tr.best td:first-child{color:var(--mark);font-weight:600}tr:hover td{background:var(--raised)}tr:target td{background:color-mix(in srgb,var(--mark) 22%,var(--paper))}
td.score{background:color-mix(in srgb,var(--mark) calc(var(--v)*26%),transparent)}td small,td.none{color:var(--dim)}
#tip{position:fixed;pointer-events:none;background:var(--ink);color:var(--paper);padding:.2rem .5rem;border-radius:.3rem;font-size:13px;max-width:22rem;z-index:9}
@media(max-width:40rem){body{padding:1rem .6rem}th:first-child,td:first-child{max-width:9.5rem;overflow:hidden;text-overflow:ellipsis}}
)";

// A click on a heading sorts by it: numbers the largest first, what is n/a last. Controls hide rows and their dots.
const char* const kPageScript = R"(
const all=s=>[...document.querySelectorAll(s)],form=document.querySelector(".controls"),tip=document.getElementById("tip");
for(const th of all("th"))th.onclick=()=>{
 const i=[...th.parentNode.children].indexOf(th),body=th.closest("table").tBodies[0];
 const down=i===0?th.ariaSort==="ascending":th.ariaSort!=="descending";
 for(const o of th.parentNode.children)o.removeAttribute("aria-sort");
 th.setAttribute("aria-sort",down?"descending":"ascending");
 const key=r=>i===0?r.cells[0].textContent:parseFloat(r.cells[i].dataset.v);
 body.append(...[...body.rows].sort((a,b)=>{const x=key(a),y=key(b);
  if(i===0)return x.localeCompare(y,"en",{numeric:true})*(down?-1:1);
  return isNaN(x)||isNaN(y)?isNaN(x)-isNaN(y):(x-y)*(down?-1:1)}))};
const apply=()=>{
 const d=new FormData(form),kinds=d.getAll("kind"),track=d.get("track"),limit=d.get("limit"),name=d.get("name").toLowerCase();
 let shown=0,rows=all("tbody tr");
 for(const s of all("section"))s.hidden=track&&s.id!==track;
 for(const r of rows){
  const hide=!kinds.includes(r.dataset.kind)||limit&&r.dataset.share>limit/100||d.get("best")&&!r.classList.contains("best")||
   name&&!r.cells[0].textContent.toLowerCase().includes(name);
  r.hidden=hide;shown+=!hide&&!r.closest("section").hidden;
  for(const c of all(`circle[data-row="${r.id}"]`))c.classList.toggle("off",hide)}
 form.querySelector("output").textContent=shown+" of "+rows.length+" rows"};
form.oninput=apply;apply();
const show=(c,x,y)=>{tip.textContent=c.dataset.tip;tip.hidden=false;
 tip.style.left=Math.min(x+12,innerWidth-tip.offsetWidth-8)+"px";tip.style.top=Math.max(4,y-tip.offsetHeight-10)+"px"};
for(const c of all("circle")){
 c.onmousemove=e=>show(c,e.clientX,e.clientY);c.onmouseleave=()=>tip.hidden=true;
 c.parentNode.onfocus=()=>{const b=c.getBoundingClientRect();show(c,b.right,b.top)};c.parentNode.onblur=()=>tip.hidden=true}
)";

}  // namespace quire
