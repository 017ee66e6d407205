// Links to the other versions of these pages, where the site has any (docs/versions.py).
document.addEventListener("DOMContentLoaded", async () => {
  const root = new URL(document.documentElement.dataset.content_root, location.href);
  const found = await fetch(new URL("../versions.json", root)).catch(() => null);
  const names = found && found.ok ? await found.json() : [];
  const place = document.querySelector(".sidebar-sticky");
  if (names.length < 2 || !place) return;
  const list = place.appendChild(document.createElement("p"));
  list.className = "versions";
  list.append("Versions: ");
  for (const name of names) {
    const link = list.appendChild(document.createElement("a"));
    link.href = new URL(`../${name}/`, root);
    link.textContent = name;
    list.append(" ");
  }
});
