(function () {
  'use strict';
  var main = document.getElementById('fabric'), live = document.getElementById('live');
  var said = document.getElementById('said'), pause = document.getElementById('pause');
  var paused = false, timer = 0, source;

  function say(element, text) {
    // The same text again would be read aloud again.
    if (element.textContent !== text) { element.textContent = text; }
  }
  function state(text, isLost) { say(live, text); live.className = isLost ? 'lost' : ''; }
  function since() {
    var at = document.getElementById('at');
    return at ? ' since ' + at.textContent : '';
  }
  function lost() { state('Not updated' + since(), true); }
  function current() { state(paused ? 'Paused' + since() : 'Updated every second', false); }

  if (!window.EventSource) {
    state('This browser takes no live updates: the page is loaded again every 10 seconds', false);
    setTimeout(function () { location.reload(); }, 10000);
    return;
  }

  function put(html) {
    var focus = document.activeElement, id = focus && main.contains(focus) ? focus.id : '';
    var places = {}, regions = main.querySelectorAll('.scroll'), i, region;
    for (i = 0; i < regions.length; i += 1) { places[regions[i].id] = regions[i].scrollLeft; }
    // The server has escaped every value in it.
    main.innerHTML = html;
    for (region in places) {
      if (document.getElementById(region)) { document.getElementById(region).scrollLeft = places[region]; }
    }
    if (id && document.getElementById(id)) { document.getElementById(id).focus({ preventScroll: true }); }
    var news = document.getElementById('news');
    if (news) { say(said, news.textContent); }
  }
  function open() {
    source = new EventSource(main.getAttribute('data-events'));
    source.onmessage = function (message) {
      clearTimeout(timer);
      timer = setTimeout(lost, 5000);
      if (!paused) { put(message.data); }
      current();
    };
    source.onerror = function () {
      lost();
      // It tries again by itself unless the server has refused.
      if (source.readyState === 2) { setTimeout(open, 5000); }
    };
  }
  pause.hidden = false;
  pause.onclick = function () {
    paused = !paused;
    pause.textContent = paused ? 'Go on with updates' : 'Pause updates';
    current();
  };
  open();
}());
